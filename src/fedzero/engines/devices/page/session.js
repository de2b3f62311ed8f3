// A device's half of fedzero-device/1, without a connection: frames of the gateway in, frames for it out.
import { Broken, Hopeless } from './errors.js';
import { madeKey, sha256, sign, verify } from './keys.js';
import { Model } from './model.js';
import { fields, joined, little, pack, same, unpack, utf8 } from './packing.js';
import { printable, rateAt, readPlan } from './plan.js';

const VERSION = 1, NO_MODEL = 2n ** 64n - 1n, WRITE_EVERY = 10;
const [ENROL, HELLO, PROOF, ANSWER, REFUSAL, READY, FETCH] = [1, 2, 3, 4, 5, 6, 7];
export const LEAVE = pack([9]);
const ANOTHER_ORDER = 1, UNTRUE = 2, FAILED = 5;
const FRAMES = { 16: 'enrolled', 17: 'challenged', 18: 'welcomed', 19: 'ordered', 20: 'updated', 21: 'offered', 22: 'piece', 23: 'wait', 24: 'error', 25: 'finish' };
// Frames after Hello, and those of a session that has begun.
const CHALLENGE = 17, WELCOME = 18, OPEN = [19, 20, 21, 22, 25];
// Errors after which another attempt ends in the same way, and after which the session goes on.
const HOPELESS = [2, 3, 4, 5, 6, 7, 13, 14], LASTING = [9, 10, 12];
const PLACE = 5;

// core, store: see there. name: of the run, in the store. ticket: null if the device has enrolled. tell(kind, facts): events.
export class Session {
  constructor(core, store, name, ticket, tell) {
    Object.assign(this, { core, store, name, ticket, tell, rows: null, model: null, usable: false, finished: false });
    Object.assign(this, { pause: 0, answered: 0, round: 0, written: -WRITE_EVERY, fetched: null });
  }

  // What is stored of the device; without it a ticket is needed.
  async restore() {
    this.device = await this.store.get('devices', this.name);
    if (!this.device) {
      if (!this.ticket) throw new Hopeless('This browser has no place in the run any more: open the address of the ticket again.');
      const keep = async (key) => {
        await this.store.put('devices', this.name, { run: this.ticket.run, key });
        return (await this.store.get('devices', this.name)).key;
      };
      await madeKey(keep);
      this.device = await this.store.get('devices', this.name);
    }
    if (this.device.plan) await this.follow(this.device.plan);
  }

  async follow(bytes) {
    this.plan = readPlan(bytes);
    this.planHash = await sha256(bytes);
    [this.model, this.usable] = [null, false];
    this.tell('plan', { plan: this.plan, device: this.device });
  }

  // The replica, as it was stored, or a first one.
  async prepare() {
    if (this.model) return;
    this.model = new Model(this.core, this.plan);
    const found = await this.store.get('models', this.name);
    if (!found || found.state.length !== this.model.length) return;
    this.model.load(found.state, found.round);
    this.usable = same(this.model.digest(), found.digest);
    this.written = found.round;
  }

  get ready() {
    return this.model && this.usable ? this.model.round : null;
  }

  // ---- signatures

  statement(kind, payload, place = this.device.place ?? 0) {
    return joined(utf8(`fedzero-device/1 ${kind}\0`), this.device.run, little(place, 4), payload);
  }

  signed = (kind, payload, place) => sign(this.device.key, this.statement(kind, payload, place));
  isTrue = (kind, payload, signature) => verify(this.device.key.algorithm, this.device.gateway, this.statement(kind, payload), signature);

  async expectTrue(kind, payload, signature) {
    if (!(await this.isTrue(kind, payload, signature))) throw new Broken(`The signature of ${kind} is not of the gateway that the ticket names.`);
  }

  // ---- frames

  // The first frame of a connection.
  async begin() {
    [this.nonce, this.open] = [null, false];
    return [this.device.place === undefined ? await this.enrol() : await this.hello()];
  }

  async enrol() {
    if (!this.ticket) throw new Hopeless('This browser has no place in the run yet: open the address of the ticket again.');
    const { algorithm, publicKey } = this.device.key, { secret, fingerprint } = this.ticket;
    const signature = await this.signed('enrol', joined(secret, fingerprint, [algorithm], publicKey), 0);
    return pack([ENROL, VERSION, secret, algorithm, publicKey, signature]);
  }

  async hello() {
    if (this.rows) await this.prepare();
    this.nonce = crypto.getRandomValues(new Uint8Array(16));
    return pack([HELLO, VERSION, this.device.run, this.device.place, this.nonce, this.planHash ?? new Uint8Array(0), this.ready]);
  }

  // What to send because of a frame.
  async receive(bytes) {
    const frame = fields(unpack(bytes), 'a frame', 'nat');
    const name = FRAMES[frame[0]];
    if (!name) throw new Broken(`a frame with the tag ${frame[0]}`);
    const early = frame[0] === CHALLENGE || frame[0] === WELCOME ? !this.nonce || this.open : OPEN.includes(frame[0]) && !this.open;
    if (early) throw new Broken(`a frame with the tag ${frame[0]} where none is expected`);
    return (await this[name](frame.slice(1))) ?? [];
  }

  async enrolled(frame) {
    const [run, place, ed25519, p256, signature] = fields(frame, 'Enrolled', 16, 'nat', 32, 'bytes', 64);
    if (this.device.place !== undefined || !this.ticket) throw new Broken('Enrolled where nothing was asked');
    const wrong = new Hopeless('This is not the gateway that the ticket names.');
    const hash = await sha256(joined(ed25519, p256));
    if (!same(run, this.ticket.run) || !same(hash.slice(0, 16), this.ticket.fingerprint) || place >= 2 ** 32) throw wrong;
    const { algorithm, publicKey } = this.device.key, gateway = algorithm === 1 ? ed25519 : p256;
    const message = this.statement('enrolled', joined(this.ticket.secret, publicKey), place);
    if (!(await verify(algorithm, gateway, message, signature))) throw wrong;
    this.device = { ...this.device, place, gateway };
    await this.store.put('devices', this.name, this.device);
    this.tell('enrolled', { place });
    return [await this.hello()];
  }

  async challenged(frame) {
    const [version, nonce] = fields(frame, 'Challenge', 'nat', 32);
    if (version !== VERSION) throw new Hopeless(`The gateway speaks version ${version}: reload this page.`);
    const signature = await this.signed('proof', joined(nonce, this.nonce, little(this.ready ?? NO_MODEL, 8)));
    return [pack([PROOF, signature])];
  }

  async welcomed(frame) {
    const [bytes, , round, signature] = fields(frame, 'Welcome', 'bytes', 'nat', 'nat', 64);
    const whole = bytes.length ? bytes : this.device.plan ?? bytes;
    await this.expectTrue('welcome', joined(this.nonce, await sha256(whole)), signature);
    if (bytes.length && !(this.device.plan && same(bytes, this.device.plan))) {
      await this.follow(bytes);
      this.device = { ...this.device, plan: bytes };
      await this.store.put('devices', this.name, this.device);
      if (this.rows) await this.prepare();
    }
    if (!this.plan) throw new Broken('a Welcome without a plan');
    [this.round, this.open] = [round, true];
    this.tell('welcome', { round, ready: this.ready !== null });
  }

  // Before rows are there the tab learns the plan, and works on nothing.
  expectModel() {
    if (!this.model) throw new Broken('an order for a tab that is not ready');
  }

  async ordered(frame) {
    const [round, exchange, attempt, body, signature] = fields(frame, 'Order', 'nat', 'nat', 'nat', 'bytes', 64);
    const numbers = [round, exchange, attempt], numbered = this.numbered(...numbers);
    const refused = (code, text) => {
      this.tell('refused', { round, text });
      return [pack([REFUSAL, ...numbers, code, text])];
    };
    if (!(await this.isTrue('order', joined(numbered, body), signature))) return refused(UNTRUE, 'the signature of the order is wrong');
    const hash = await sha256(body), before = await this.store.answer(this.name, numbers);
    if (before && !same(before.order, hash)) return refused(ANOTHER_ORDER, 'another order under the same number');
    this.expectModel();
    const [work, pairs] = fields(unpack(body), 'an order', 'bytes', 'bytes');
    const [tag, asked, part, updates] = fields(unpack(work), 'work', 'nat', 'nat', 'nat', 'array');
    if (tag !== 1 || asked !== round || part !== exchange || exchange || !this.usable) return refused(FAILED, 'this device is not ready for the order');
    this.fold(updates, pairs);
    if (this.model.round > round) return refused(FAILED, `its model is of round ${this.model.round}`);
    this.round = this.model.round = round;
    await this.write();
    this.tell('working', { round });
    try {
      return [await this.answerTo(numbers, hash, before ?? this.turn(round, pairs))];
    } catch (error) {
      if (error instanceof RangeError) return refused(FAILED, error.message);
      throw error;
    }
  }

  numbered = (round, exchange, attempt) => joined(little(round, 8), little(exchange, 4), little(attempt, 4));

  turn(round, pairs) {
    const { scalars, loss, queries } = this.model.turn(round, rateAt(this.plan, pairs, round), this.rows, this.device.place);
    const values = new Uint8Array(scalars.buffer), said = new Uint8Array(Float32Array.of(loss).buffer);
    return { body: pack([round, 0, this.model.digest(), values, said, queries]) };
  }

  // The frame of an answer, which is stored before it is sent.
  async answerTo(numbers, order, { body, signature }) {
    if (!signature) {
      signature = await this.signed('answer', joined(this.numbered(...numbers), order, body));
      await this.store.keep(this.name, numbers, { order, body, signature });
      this.answered += 1;
      this.tell('answered', { round: numbers[0], body });
    }
    return pack([ANSWER, ...numbers, body, signature]);
  }

  fold(updates, pairs) {
    this.model.apply(updates.map((update) => {
      const [tag, round, scalars] = fields(update, 'an update', 'nat', 'nat', 'bytes');
      if (tag !== 1) throw new Broken(`an update with the tag ${tag}, which is not in the profile`);
      return [round, scalars, rateAt(this.plan, pairs, round)];
    }));
  }

  async updated(frame) {
    const [body, signature] = fields(frame, 'Updates', 'bytes', 64);
    await this.expectTrue('updates', body, signature);
    const [fresh, updates, pairs, round] = fields(unpack(body), 'updates', 'bool', 'array', 'bytes', 'nat');
    if (!this.model) return [];
    if (fresh) {
      this.model.begin();
      this.usable = this.model.canBegin;
    }
    if (!this.usable) throw new Broken('updates for a device without a model');
    this.fold(updates.map(unpack), pairs);
    this.model.round = Math.max(round, this.model.round);
    return this.nowReady();
  }

  async nowReady() {
    this.round = this.model.round;
    await this.write();
    this.tell('caught', { round: this.round });
    return [pack([READY, this.model.round, this.model.digest()])];
  }

  async offered(frame) {
    const [body, signature] = fields(frame, 'Checkpoint', 'bytes', 64);
    await this.expectTrue('checkpoint', body, signature);
    if (!this.model) return [];
    const [round, hash, size, digest] = fields(unpack(body), 'a checkpoint', 'nat', 32, 'nat', 8);
    if (size !== this.model.length) throw new Broken(`a checkpoint of ${size} bytes where the model has ${this.model.length}`);
    if (!this.fetched || !same(this.fetched.hash, hash)) this.fetched = { round, hash, digest, at: 0, bytes: new Uint8Array(size) };
    return [pack([FETCH, hash, this.fetched.at])];
  }

  async piece(frame) {
    const [offset, data] = fields(frame, 'Piece', 'nat', 'bytes'), f = this.fetched;
    if (!f || offset !== f.at) return [];
    if (!data.length || data.length > f.bytes.length - f.at) throw new Broken('a piece of a checkpoint has another length');
    f.bytes.set(data, f.at);
    f.at += data.length;
    this.tell('fetched', { part: f.at / f.bytes.length });
    if (f.at < f.bytes.length) return [pack([FETCH, f.hash, f.at])];
    this.fetched = null;
    if (!same(await sha256(f.bytes), f.hash)) throw new Broken('the checkpoint is not the one that was offered');
    this.model.load(f.bytes, f.round);
    this.usable = same(this.model.digest(), f.digest);
    this.written = -WRITE_EVERY;
    return this.nowReady();
  }

  // Store the model now and then.
  async write(always = false) {
    if (!this.usable || (!always && this.model.round - this.written < WRITE_EVERY)) return;
    const { round } = this.model;
    await this.store.put('models', this.name, { round, digest: this.model.digest(), state: this.model.bytes() });
    this.written = round;
  }

  wait(frame) {
    const [seconds, text] = fields(frame, 'Wait', 'nat', 'text');
    this.pause = Math.min(seconds, 3600);
    throw new Broken(printable(text) || 'The gateway asks to wait.');
  }

  async error(frame) {
    const [code, text] = fields(frame, 'Error', 'nat', 'text'), said = `The gateway says: ${printable(text)}.`;
    if (code === PLACE && this.ticket) {
      await this.store.put('devices', this.name, { run: this.device.run, key: this.device.key });
      this.device = await this.store.get('devices', this.name);
      throw new Broken(said);
    }
    if (HOPELESS.includes(code)) throw new Hopeless(said);
    if (!LASTING.includes(code) || this.fetched) {
      this.fetched = null;
      throw new Broken(said);
    }
    this.tell('said', { text: said });
  }

  async finish(frame) {
    const [rounds, reason, signature] = fields(frame, 'Finish', 'nat', 'text', 64);
    await this.expectTrue('finish', joined(little(rounds, 8), utf8(reason)), signature);
    this.finished = true;
    this.tell('finished', { rounds, reason: printable(reason) });
  }
}
