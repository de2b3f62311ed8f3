// Files made of what the page holds: the curves and the table as CSV, the curves as JSON, a recipe as TOML.
function save(name, kind, text) {
  const link = html("a"), place = URL.createObjectURL(new Blob([text], { type: kind }));
  link.href = place;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(place), 1000);
}

// A spreadsheet runs what begins with one of these as a formula: a quotation mark keeps names text.
function cell(value) {
  let text = value === null || value === undefined ? "" : String(value);
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const csv = (rows) => rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";

function curveRows() {
  const rows = [["run", "metric", "round", "bytes_per_client", "queries", "seconds", "value", "standard_error"]];
  for (const curve of page.data.curves) {
    for (const [metric, of] of Object.entries(curve.metrics)) {
      of.y.forEach((value, i) => rows.push([
        curve.name, metric, ...["rounds", "bytes", "queries", "seconds"].map((a) => of[a] && of[a][i]), value, of.error && of.error[i],
      ]));
    }
  }
  return rows;
}

function tableRows() {
  const rows = [...document.querySelectorAll("#totals tr")];
  return rows.map((row) => [...row.children].map((each) => each.textContent.trim()));
}

const FILES = {
  "curves.csv": () => save("curves.csv", "text/csv", csv(curveRows())),
  "curves.json": () => save("curves.json", "application/json", JSON.stringify(page.data.curves, null, 1)),
  "table.csv": () => save("table.csv", "text/csv", csv(tableRows())),
};

function makeDownloads() {
  document.querySelectorAll("button[data-save]").forEach((button) => {
    button.onclick = () => {
      const file = button.dataset.save;
      if (FILES[file]) FILES[file]();
      else save(file, "application/toml", button.closest("details").querySelector("pre").textContent + "\n");
    };
    button.hidden = false;
  });
}
