// Headings of the tables of runs sort them: the smallest first, the largest first, and as they came.
const WAYS = [null, "ascending", "descending"];
const sorted = new Map(); // by the table's place in the page: a heading and a way

function order(way, column) {
  const sign = way === "descending" ? -1 : 1;
  const key = (row) => { const cell = row.children[column]; return "value" in cell.dataset ? Number(cell.dataset.value) : cell.classList.contains("number") ? null : cell.textContent.trim(); };
  return (a, b) => {
    const [first, second] = [key(a), key(b)];
    if (way === null || first === second) return a.dataset.row - b.dataset.row;
    if (first === null || second === null) return first === null ? 1 : -1; // what a run has not is last either way
    const numbers = typeof first === "number" && typeof second === "number";
    return sign * (numbers ? first - second : String(first).localeCompare(String(second), undefined, { numeric: true }));
  };
}

function sortRows(table, place) {
  const { heading, way } = sorted.get(place), headings = [...table.tHead.rows[0].cells];
  const column = headings.findIndex((each) => each.textContent.trim() === heading);
  headings.forEach((each, i) => (i === column && way ? each.setAttribute("aria-sort", way) : each.removeAttribute("aria-sort")));
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order(column < 0 ? null : way, Math.max(0, column))));
}

function makeSorting() {
  document.querySelectorAll("table.runs").forEach((table, place) => {
    if (table.tBodies[0].rows.length < 2 || table.classList.contains("sorts")) return;
    table.classList.add("sorts");
    for (const head of table.tHead.rows[0].cells) {
      const button = html("button", "sort", head.textContent.trim());
      button.type = "button";
      button.onclick = () => {
        const heading = head.textContent.trim(), before = sorted.get(place);
        const now = before && before.heading === heading ? WAYS.indexOf(before.way) : 0;
        sorted.set(place, { heading, way: WAYS[(now + 1) % WAYS.length] });
        sortRows(table, place);
      };
      head.replaceChildren(button);
    }
    if (sorted.has(place)) sortRows(table, place);
  });
}
