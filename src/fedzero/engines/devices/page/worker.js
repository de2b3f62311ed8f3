// What a tab does beside its page: keys, connection, storage and arithmetic. The page sends what people do, and is told
// what has happened.
import { Connection } from './connection.js';
import { Core, MODULE } from './core.js';
import { Broken, Hopeless } from './errors.js';
import { NAMES } from './keys.js';
import { hex, unpack } from './packing.js';
import { readPlan } from './plan.js';
import { Rows } from './rows.js';
import { Session } from './session.js';
import { Store } from './store.js';
import { readTable } from './table.js';
import { readTicket } from './ticket.js';

const JUDGED = 200, JUDGE_EVERY = 1000;
const tell = (kind, facts = {}) => postMessage({ kind, ...facts });

class Tab {
  // wanted: '' nothing, 'plan' to enrol and learn the plan, 'rounds' to take part.
  constructor() {
    Object.assign(this, { wanted: '', visible: true, going: false, up: 0, down: 0, judged: 0 });
  }

  async open({ ticket, run, base }) {
    this.base = base;
    this.ticket = readTicket(ticket);
    if (ticket && !this.ticket) throw new Hopeless('This address is no ticket: it has to have all that stands behind the #.');
    this.store = await Store.open();
    this.name = this.ticket?.name ?? run;
    if (!this.name) return tell('nothing');
    const answer = await fetch(new URL(MODULE(), import.meta.url));
    if (!answer.ok) throw new Hopeless('The page is not complete: reload it.');
    this.module = await answer.arrayBuffer();
    const device = await this.store.get('devices', this.name);
    if (device?.plan) await this.planned(readPlan(device.plan), device);
    else if (!this.ticket) return tell('nothing');
    await this.answers();
    tell('opened', { run: this.name, planned: Boolean(device?.plan) });
  }

  async planned(plan, { place, key }) {
    this.plan = plan;
    this.rows ??= new Rows(plan.task, await this.store.get('rows', this.name));
    const { name, places, rounds, method, task } = plan;
    const numbers = method.directions * method.steps;
    tell('plan', { name, places, rounds, numbers, task, place, key: NAMES[key.algorithm], publicKey: hex(key.publicKey) });
    this.counted();
  }

  counted() {
    tell('rows', { count: this.rows.count, byLabel: this.rows.byLabel });
  }

  // ---- rounds

  async want(what) {
    this.wanted = what;
    if (!what) {
      this.connection?.leave();
      tell('paused');
    }
    this.waiting?.abort();
    await this.go();
  }

  async show(visible) {
    this.visible = visible;
    if (!visible) {
      this.connection?.leave();
      this.waiting?.abort();
      if (this.wanted) tell('away');
    }
    await this.go();
  }

  // One connection at a time, and one tab of this browser: places have one session.
  async go() {
    if (this.going) return;
    this.going = true;
    try {
      while (this.wanted && this.visible) await this.held(() => this.takePart());
    } finally {
      this.going = false;
    }
  }

  async held(work) {
    if (!navigator.locks) return work();
    let mine = false;
    const name = `fedzero ${this.name}`;
    await navigator.locks.request(name, { ifAvailable: true }, (lock) => ((mine = Boolean(lock)) ? work() : null));
    if (mine) return undefined;
    tell('elsewhere');
    this.waiting = new AbortController();
    return navigator.locks.request(name, { signal: this.waiting.signal }, work).catch((error) => {
      if (error.name !== 'AbortError') throw error;
    });
  }

  // A session from what is stored, since another tab may have gone on in the meantime.
  async takePart() {
    const session = new Session(new Core(this.module), this.store, this.name, this.ticket, (kind, facts) => this.heard(kind, facts));
    const until = () => this.wanted === 'plan' && Boolean(session.plan);
    try {
      await session.restore();
      this.session = session;
      if (this.wanted === 'rounds') {
        this.expectRows();
        session.rows = this.rows;
      }
      const address = new URL('fedzero/1/socket', this.base);
      address.protocol = address.protocol.replace('http', 'ws');
      this.connection = new Connection(session, address, until, (kind, facts) => this.heard(kind, facts));
      if (this.wanted && this.visible) await this.connection.run();
      if (session.model) await session.write(true);
      if (until()) tell('joined');
      if (session.finished || until()) this.wanted = '';
    } catch (error) {
      this.wanted = '';
      throw error instanceof Broken ? new Hopeless(error.message) : error;
    } finally {
      this.up += this.connection?.up ?? 0;
      this.down += this.connection?.down ?? 0;
      this.connection = null;
    }
  }

  expectRows() {
    const { least } = this.plan.task;
    if (!this.rows?.count || this.rows.count < least) throw new Hopeless(`The run asks for at least ${Math.max(1, least)} rows.`);
  }

  heard(kind, facts) {
    if (kind === 'bytes') tell(kind, { up: this.up + facts.up, down: this.down + facts.down });
    else if (kind === 'plan') this.plan ?? this.planned(facts.plan, facts.device).catch(failed);
    else if (kind === 'answered') this.answered(facts);
    else tell(kind, facts);
  }

  answered({ body }) {
    tell('answered', { answers: [shown(body)] });
    const now = performance.now();
    if (now - this.judged < JUDGE_EVERY) return;
    this.judged = now;
    this.judge();
  }

  // How many rows the model sorts as they are labelled.
  judge() {
    const { session, rows } = this, step = Math.max(1, Math.floor(rows.count / JUDGED));
    const places = Array.from({ length: Math.min(rows.count, JUDGED) }, (_, i) => i * step);
    const found = session.model.classes(rows, places);
    tell('judged', { right: places.filter((row, i) => rows.y[row] === found[i]).length, of: places.length });
  }

  // ---- rows

  async csv({ file }) {
    const rows = await readTable(file, this.plan.task, (share) => tell('reading', { share }));
    await this.changed(rows);
  }

  async draw({ pixels, label }) {
    if (!Number.isInteger(label) || label < 0 || label >= this.plan.task.widths.at(-1)) throw new Hopeless('Choose a label first.');
    this.rows.add(pixels, label);
    await this.changed(this.rows);
  }

  async undo() {
    if (this.rows.count) this.rows.count -= 1;
    await this.changed(this.rows);
  }

  async clear() {
    await this.changed(new Rows(this.plan.task));
  }

  // What the model takes a drawing for.
  guess({ pixels }) {
    const { session } = this;
    if (!session?.model || !session.usable) return;
    const one = new Rows(this.plan.task);
    one.add(pixels, 0);
    tell('guessed', { label: session.model.classes(one, [0])[0] });
  }

  async changed(rows) {
    this.rows = rows;
    if (this.session) this.session.rows = rows.count ? rows : null;
    this.counted();
    await this.store.put('rows', this.name, rows.stored);
  }

  // ---- what left, and what stays

  async answers() {
    const found = await this.store.answers(this.name);
    tell('answered', { answers: found.map(({ body }) => shown(body)), before: true });
  }

  async save() {
    const device = await this.store.get('devices', this.name), found = await this.store.answers(this.name);
    const answers = found.map(({ order, body, signature }) => {
      const { values, ...rest } = shown(body);
      return { ...rest, numbers: Array.from(values), order_sha256: hex(order), body: hex(body), signature: hex(signature) };
    });
    const { up, down } = { up: this.up + (this.connection?.up ?? 0), down: this.down + (this.connection?.down ?? 0) };
    const facts = { protocol: 'fedzero-device/1', run: this.name, name: this.plan?.name, place: device?.place };
    const key = { algorithm: NAMES[device?.key.algorithm], public_key: device && hex(device.key.publicKey) };
    const bytes = { since_this_page_was_opened: { up, down } };
    tell('saved', { text: JSON.stringify({ ...facts, key, bytes, answers }, null, 1) });
  }

  // Nothing of the run is left in this browser; the place is lost with its key.
  async forget() {
    await this.want('');
    for (const each of ['devices', 'models', 'rows']) await this.store.remove(each, this.name);
    await this.store.remove('answers', IDBKeyRange.bound([this.name], [this.name, []]));
    tell('forgotten');
  }
}

// An answer as people and files see it.
function shown(body) {
  const [round, , digest, values, loss, queries] = unpack(body);
  const floats = (bytes) => new Float32Array(bytes.slice().buffer);
  return { round, digest: hex(digest), values: floats(values), loss: floats(loss)[0], queries, bytes: body.length };
}

function failed(error) {
  const known = error instanceof Hopeless || error instanceof Broken;
  if (!known) console.error(error);
  tell('failed', { text: known ? error.message : `This page failed: ${error.message || error}` });
}

const tab = new Tab();
onmessage = ({ data }) => {
  const { command, ...rest } = data, argument = 'value' in rest ? rest.value : rest;
  Promise.resolve().then(() => tab[command](argument)).catch(failed);
};
addEventListener('online', () => tab.connection?.wake());
addEventListener('offline', () => tab.connection?.lost());
