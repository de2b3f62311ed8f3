// A web socket for a session: frames in their order, and connections that break are made again.
import { Broken } from './errors.js';
import { LEAVE } from './session.js';

const SHORTEST = 500, LONGEST = 30_000, STALLED = 20_000;

export class Connection {
  // address: of the socket. until(): whether what was wanted is there. tell(kind, facts): events.
  constructor(session, address, until, tell) {
    Object.assign(this, { session, address, until, tell, wanted: true, socket: null, up: 0, down: 0 });
  }

  // Until the run has ended, what was wanted is there, or `leave` was called. Throws `Hopeless`.
  async run() {
    const { session } = this;
    for (let pause = SHORTEST; this.wanted && !session.finished && !this.until(); pause = Math.min(2 * pause, LONGEST)) {
      const before = session.answered;
      try {
        this.tell('connecting', {});
        await this.connected();
      } catch (error) {
        if (!(error instanceof Broken)) throw error;
        if (session.answered > before) pause = SHORTEST;
        if (!this.wanted) break;
        const wait = Math.max(pause, 1000 * session.pause);
        session.pause = 0;
        this.tell('broken', { text: error.message, seconds: wait / 1000 });
        await this.sleep(wait);
      }
    }
  }

  // Not longer than until `wake`.
  sleep(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.wake = () => (clearTimeout(timer), resolve());
    });
  }

  wake() {}

  connected() {
    return new Promise((resolve, reject) => {
      const socket = (this.socket = new WebSocket(this.address));
      socket.binaryType = 'arraybuffer';
      let work = Promise.resolve();
      const end = (error) => {
        clearTimeout(opening);
        socket.onopen = socket.onmessage = socket.onclose = null;
        socket.close();
        this.socket = null;
        const settled = () => (error ? reject(error) : resolve());
        work.then(settled, settled); // what is under way is not disturbed by the next connection
      };
      const opening = setTimeout(() => end(new Broken('The gateway does not answer.')), STALLED);
      const then = (next) => (work = work.then(next).catch(end));
      const send = (frames) => {
        for (const frame of frames) {
          if (socket.readyState !== WebSocket.OPEN) return;
          socket.send(frame);
          this.up += frame.length;
        }
        this.tell('bytes', { up: this.up, down: this.down });
      };
      socket.onopen = () => {
        clearTimeout(opening);
        then(async () => send(await this.session.begin()));
      };
      socket.onmessage = ({ data }) => then(async () => {
        if (!this.socket) return;
        if (typeof data === 'string') throw new Broken('The gateway sends text where frames are binary.');
        this.down += data.byteLength;
        send(await this.session.receive(new Uint8Array(data)));
        if (this.session.finished || this.until()) {
          send([LEAVE]);
          end();
        }
      });
      socket.onclose = () => then(() => end(new Broken('The connection broke.')));
      this.left = () => {
        send([LEAVE]);
        end(new Broken('left'));
      };
    });
  }

  left() {}

  // Take no part any more.
  leave() {
    this.wanted = false;
    if (this.socket) this.left();
    this.wake();
  }

  // The network is gone, or is there again.
  lost() {
    if (this.socket) this.socket.close();
  }
}
