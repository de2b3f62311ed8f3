// A page that is served follows its run: the server sends the page anew, and what changed in it is taken over.
// What the reader chose, opened and focused stays. Without a server the page is complete as it is.
const taken = new Map();

function takeOver(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  if (!document.getElementById("data") || !fresh.getElementById("data")) { location.reload(); return; }
  for (const old of document.querySelectorAll("[data-live]")) {
    const now = fresh.querySelector(`[data-live="${old.dataset.live}"]`);
    const key = old.dataset.live, markup = now && now.innerHTML;
    if (!now || markup === (taken.get(key) ?? old.innerHTML)) continue;
    const sorting = old.querySelector(".sort:focus");
    if (!sorting && old.contains(document.activeElement)) continue;
    const place = sorting && [...old.querySelectorAll(".sort")].indexOf(sorting);
    taken.set(key, markup);
    const open = [...old.querySelectorAll("details")].map((each) => each.open);
    old.replaceChildren(...[...now.childNodes].map((each) => document.importNode(each, true)));
    old.querySelectorAll("details").forEach((each, i) => { if (i < open.length) each.open = open[i]; });
    makeSorting();
    if (sorting) old.querySelectorAll(".sort")[place]?.focus();
  }
  document.title = fresh.title;
  const names = (data) => data.curves.map((curve) => curve.name).join("\n"), data = readData(fresh);
  if (data.curves.length + page.data.curves.length > 2 && names(data) !== names(page.data)) { location.reload(); return; } // runs came or went
  page.data = data;
  if (!page.data.metrics.some((each) => each.id === page.metric)) return void startCharts(); // another run in its place
  makePlaces();
  if (!document.getElementById("controls").contains(document.activeElement)) makeControls();
  makeDownloads();
  filterRuns();
  drawAll();
}

function follow() {
  const state = document.getElementById("connection");
  const say = (text, kind) => { if (state) { state.textContent = text; state.dataset.state = kind; } };
  const events = new EventSource(`events${location.search}`);
  const ended = () => page.data && page.data.ended;
  const well = () => (ended() ? say("the run has ended", "ended") : say("live", "live"));
  events.onopen = well;
  events.onerror = () => {
    if (!ended()) say("connection lost, trying again", "lost");
    if (events.readyState === EventSource.CLOSED) setTimeout(follow, 10000); // refused: browsers do not try again
  };
  events.onmessage = (event) => { takeOver(JSON.parse(event.data)); well(); };
}

if (document.getElementById("data")) { startCharts(); makeSorting(); makeDownloads(); }
if (document.documentElement.dataset.followed !== undefined) follow();
