// The page: what people see and do. All else is in the worker.
import { Drawing, SIDE } from './drawing.js';

const $ = (id) => document.getElementById(id);
const MOST_SHOWN = 50, MOST_POINTS = 600, PATIENCE = 5000, WAITING = 'Connected: waiting for the next round';
const base = new URL('.', location.href), worker = new Worker(new URL('./worker.js', import.meta.url), { type: 'module' });
const say = (command, value) => worker.postMessage({ command, value });
const here = { plan: null, wanted: false, ended: false, rows: 0, losses: [], answers: 0, label: 0, screen: null };

// ---- words and numbers

const whole = (value) => value.toLocaleString('en');
const size = (bytes) => (bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} KB` : `${(bytes / 1e6).toFixed(1)} MB`);
const short = (value) => (Number.isFinite(value) ? Number(value.toPrecision(6)).toString() : String(value));
const many = (count, one) => `${whole(count)} ${one}${count === 1 ? '' : 's'}`;
const nameOf = (label) => here.plan.task.labels[label] || String(label);

function element(tag, text, className) {
  const found = document.createElement(tag);
  if (text !== undefined) found.textContent = text;
  if (className) found.className = className;
  return found;
}

function problem(text, at = 'problem') {
  $(at).textContent = text;
  $(at).hidden = !text;
}

function state(text, colour) {
  if ($('state').textContent !== text) $('state').textContent = text;
  $('dot').dataset.is = colour;
}

// Of a connection: what was under way when the tab left may still be told.
function live(text, colour) {
  if (here.seen && (here.wanted || !here.plan)) state(text, colour);
}

// ---- what the worker tells

const hears = {
  nothing: () => problem('This page needs a ticket: open the whole address that you were given, or scan its code.'),

  opened({ run, planned }) {
    $('stays').hidden = false;
    here.run = run;
    localStorage.setItem('fedzero', run);
    $('join').disabled = false;
    if (!planned) return;
    $('begin').hidden = true;
    if (sessionStorage.getItem('training') === run && here.rows) start();
  },

  plan(plan) {
    here.plan = plan;
    document.title = `${plan.name || 'fedzero'}: take part`;
    $('title').textContent = plan.name ? `Train “${plan.name}” with your own examples` : $('title').textContent;
    $('numbers').textContent = many(plan.numbers, 'number');
    $('who').textContent = `Place ${plan.place} of ${whole(plan.places)}. Key: ${plan.key}, ${plan.publicKey.slice(0, 16)}…`;
    $('who').hidden = $('data').hidden = $('run').hidden = $('left').hidden = false;
    $('begin').hidden = true;
    $('join').disabled = false;
    sessionStorage.removeItem('ticket');
    describe(plan.task);
  },

  rows({ count, byLabel }) {
    const { least, widths } = here.plan.task, wanted = Math.max(1, least);
    here.rows = count;
    const more = count < wanted ? ` The run asks for at least ${whole(wanted)}.` : '';
    $('count').textContent = `${many(count, 'row')}.${more}`;
    const shown = byLabel.map((rows, label) => [label, rows]).filter(([, rows]) => rows || widths.at(-1) <= 12).slice(0, 40);
    $('tally').replaceChildren(...(count ? shown : []).map(([label, rows]) => tallied(label, rows)));
    $('undo').disabled = $('clear').disabled = !count;
    $('start').disabled = !here.wanted && count < wanted;
  },

  reading: ({ share }) => ($('count').textContent = `Reading the file: ${Math.round(100 * share)} %`),
  enrolled: () => {},
  connecting: () => live(here.wanted ? 'Connecting' : 'Asking for a place', 'busy'),
  welcome({ round, ready }) {
    problem('');
    rounds(round);
    live(ready ? WAITING : 'Connected: getting the model', ready ? 'here' : 'busy');
  },
  fetched: ({ part }) => live(`Fetching the model: ${Math.round(100 * part)} %`, 'busy'),
  caught({ round }) {
    rounds(round);
    live(WAITING, 'here');
  },
  working: ({ round }) => rounds(round),
  answered({ answers, before }) {
    answers.forEach(answered);
    here.answers += answers.length;
    $('given').textContent = whole(here.answers);
    $('kept').textContent = here.answers > MOST_SHOWN ? `The last ${MOST_SHOWN} are shown.` : '';
    $('listed').hidden = !(($('none').hidden = here.answers > 0));
    if (!before) live('Taking part', 'here');
    curve();
  },
  judged({ right, of }) {
    $('right').textContent = `${whole(right)} of ${whole(of)}`;
    look();
  },
  guessed: ({ label }) => ($('guess').textContent = drawing.empty ? '' : `The model reads: ${nameOf(label)}`),
  bytes({ up, down }) {
    $('up').textContent = size(up);
    $('down').textContent = size(down);
  },
  broken({ text, seconds }) {
    const said = `${text.replace(/[.:]$/, '')}: again in ${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
    if (here.plan) live(said, 'away');
    else problem(said);
  },
  said: ({ text }) => problem(text),
  refused: ({ round, text }) => problem(`Round ${round}: not answered, ${text}.`),
  elsewhere: () => live('Another tab of this browser takes part. This one goes on when that one is closed or hidden', 'away'),
  away: () => state('Not taking part: this tab is not visible', 'away'),
  paused: () => clearTimeout(here.stuck),
  joined() {
    problem('');
    state('Not started', 'off');
  },
  finished({ rounds: count, reason }) {
    here.ended = true;
    rounds(count);
    stopped(`The run has ended after ${many(count, 'round')}${reason ? `: ${reason}` : ''}`);
    $('start').hidden = true;
    sessionStorage.removeItem('training');
  },
  failed({ text }) {
    const complaint = here.plan && !here.wanted;
    problem(text, complaint ? 'complaint' : 'problem');
    if (here.wanted) stopped('Stopped');
    $('join').disabled = false;
    $('join').textContent = 'Take part';
    if (here.plan) hears.rows({ count: here.rows, byLabel: here.byLabel ?? [] });
  },
  saved({ text }) {
    const link = element('a');
    link.href = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
    link.download = `fedzero-${here.run.slice(0, 8)}-place-${here.plan.place}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  },
  forgotten() {
    localStorage.removeItem('fedzero');
    sessionStorage.clear();
    location.replace(location.pathname);
  },
};

worker.onmessage = ({ data: { kind, ...facts } }) => {
  if (kind === 'rows') here.byLabel = facts.byLabel;
  hears[kind]?.(facts);
};
worker.onerror = () => problem('This page could not be loaded as a whole: reload it.');

// ---- what is shown

function describe(task) {
  const inputs = task.widths[0], digits = inputs === SIDE * SIDE;
  $('way-draw').hidden = $('ways').hidden = !digits;
  if (!digits) way('file');
  const names = task.columns.filter(Boolean), labels = task.labels.length ? `${task.labels.slice(0, 8).join(', ')}${task.labels.length > 8 ? ', …' : ''}` : `0 to ${task.widths.at(-1) - 1}`;
  const columns = names.length ? `${names.slice(0, 8).join(', ')}${names.length > 8 ? ', …' : ''}, label` : `${many(inputs, 'number')}, then the label`;
  $('format').textContent = `A line has: ${columns}. Labels: ${labels}. A first line with names is optional.`;
  const choices = Array.from({ length: task.widths.at(-1) }, (_, label) => chosen(label));
  $('labels').replaceChildren($('labels').firstElementChild, ...choices);
  $('labels').className = choices.length <= 10 && task.labels.every((name) => name.length < 3) ? 'short' : '';
}

function chosen(label) {
  const row = element('label'), input = element('input');
  Object.assign(input, { type: 'radio', name: 'label', value: label, checked: label === here.label });
  input.addEventListener('change', () => (here.label = label));
  row.append(input, element('span', nameOf(label)));
  return row;
}

function tallied(label, rows) {
  const item = element('li');
  item.append(element('b', nameOf(label)), ` ${whole(rows)}`);
  return item;
}

function rounds(round) {
  const { rounds: all } = here.plan;
  $('round').textContent = `${whole(round)} of ${whole(all)}`;
  $('progress').value = all ? Math.min(1, round / all) : 0;
}

function answered({ round, loss, values, digest, bytes }) {
  here.losses.push([round, loss]);
  if (here.losses.length > MOST_POINTS) here.losses.shift();
  $('loss').textContent = short(Number(loss.toPrecision(4)));
  const item = element('li'), shown = Array.from(values.slice(0, 16), short).join('  ');
  const what = element('p', undefined, 'what');
  what.append(element('b', `Round ${whole(round)}`), ` loss ${short(loss)}, check sum `, element('code', digest), `, ${whole(bytes)} bytes`);
  item.append(what, element('p', values.length > 16 ? `${shown}  … ${whole(values.length)} in all` : shown, 'numbers'));
  $('answers').prepend(item);
  if ($('answers').children.length > MOST_SHOWN) $('answers').lastElementChild.remove();
}

function curve() {
  const points = here.losses.filter(([, loss]) => Number.isFinite(loss));
  $('chart').hidden = points.length < 2;
  if (points.length < 2) return;
  const losses = points.map(([, loss]) => loss), [low, high] = [Math.min(...losses), Math.max(...losses)];
  const [from, to] = [points[0][0], points.at(-1)[0]];
  const at = ([round, loss]) => `${((600 * (round - from)) / (to - from || 1)).toFixed(1)} ${(112 - (104 * (loss - low)) / (high - low || 1)).toFixed(1)}`;
  $('curve').setAttribute('d', `M${points.map(at).join('L')}`);
  $('chart-text').textContent = `Loss in rounds ${whole(from)} to ${whole(to)}: ${short(Number(losses[0].toPrecision(3)))} at first, ${short(Number(losses.at(-1).toPrecision(3)))} now.`;
}

// ---- what people do

async function start() {
  problem('');
  problem('', 'complaint');
  here.wanted = true;
  sessionStorage.setItem('training', here.run);
  $('start').textContent = 'Pause';
  $('start').className = '';
  say('want', 'rounds');
  await stayOn();
}

// A dark screen hides the tab.
async function stayOn() {
  try {
    if (here.wanted) here.screen = await navigator.wakeLock?.request('screen');
  } catch {
    // the browser does not want to
  }
}

function stopped(text) {
  here.wanted = false;
  here.screen?.release();
  state(text, here.ended ? 'ended' : 'off');
  $('start').textContent = 'Go on';
  $('start').className = 'primary';
}

$('join').addEventListener('click', () => {
  problem('');
  $('join').disabled = true;
  $('join').textContent = 'Asking for a place';
  say('want', 'plan');
});
$('start').addEventListener('click', () => {
  if (!here.wanted) return void start();
  sessionStorage.removeItem('training');
  say('want', '');
  stopped('Paused');
  here.stuck = setTimeout(() => location.reload(), PATIENCE); // a round that takes too long ends with its worker
});
$('csv').addEventListener('change', () => {
  const [file] = $('csv').files;
  problem('', 'complaint');
  if (file) say('csv', { file });
  $('csv').value = '';
});
for (const command of ['undo', 'clear', 'save']) $(command).addEventListener('click', () => say(command));
$('forget').addEventListener('click', () => {
  if (confirm('Forget key, examples, model and answers of this run? The place is lost.')) say('forget');
});

function way(name) {
  for (const each of ['draw', 'file']) {
    $(each).hidden = each !== name;
    $(`way-${each}`).setAttribute('aria-selected', each === name);
    $(`way-${each}`).tabIndex = each === name ? 0 : -1;
  }
}
for (const each of ['draw', 'file']) $(`way-${each}`).addEventListener('click', () => way(each));
$('ways').addEventListener('keydown', ({ key }) => {
  if (key !== 'ArrowLeft' && key !== 'ArrowRight') return;
  const other = $('draw').hidden ? 'draw' : 'file';
  way(other);
  $(`way-${other}`).focus();
});

// Strokes are from 0 to 255, or to 1 where the plan's columns are that small.
const drawn = () => {
  const pixels = drawing.pixels(), { mean, deviation } = here.plan.task;
  const full = Math.max(mean[0], deviation[0]) > 1 ? 255 : 1;
  return pixels?.map((value) => value * full);
};
const look = () => {
  const pixels = drawing.empty ? null : drawn();
  if (pixels) say('guess', { pixels });
  else $('guess').textContent = '';
};
const add = () => {
  const pixels = drawn();
  if (!pixels) return problem('The field is empty.', 'complaint');
  problem('', 'complaint');
  say('draw', { pixels, label: here.label });
  drawing.wipe();
  look();
  here.label = (here.label + 1) % here.plan.task.widths.at(-1);
  $('labels').querySelectorAll('input')[here.label].checked = true;
};
const drawing = new Drawing($('canvas'), look, add);
$('add').addEventListener('click', add);
$('wipe').addEventListener('click', () => {
  drawing.wipe();
  look();
});

// ---- the tab

let frozen = false;
const seen = () => {
  const visible = !frozen && document.visibilityState === 'visible';
  here.seen = visible;
  say('show', visible);
  if (visible) stayOn();
};
document.addEventListener('visibilitychange', seen);
for (const [kind, value] of [['freeze', true], ['resume', false]]) {
  document.addEventListener(kind, () => {
    frozen = value;
    seen();
  });
}

// The ticket is out of the address before anything else happens; until there is a place it outlasts a reload.
const ticket = location.hash.slice(1) || sessionStorage.getItem('ticket') || '';
if (ticket) sessionStorage.setItem('ticket', ticket);
history.replaceState(null, '', location.pathname);
addEventListener('hashchange', () => location.reload());
$('host').textContent = `fedzero · ${location.host}`;
seen();
say('open', { ticket, run: localStorage.getItem('fedzero') ?? '', base: base.href });
