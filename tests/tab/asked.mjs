// The page's modules without a browser: node asked.mjs FOLDER_OF_THE_PAGE; a question a line in JSON, an answer a line.
import fs from 'node:fs';
import readline from 'node:readline';
import { pathToFileURL } from 'node:url';

const folder = process.argv[2];
const load = (name) => import(pathToFileURL(`${folder}/${name}`));
const [{ Core, MODULE }, { Model }, { readPlan, rateAt, printable }, { readTable }, packing, { blake2b }, { readTicket }] = await Promise.all(
  ['core.js', 'model.js', 'plan.js', 'table.js', 'packing.js', 'blake2b.js', 'ticket.js'].map(load));
const bytes = (text) => Uint8Array.from(Buffer.from(text, 'hex'));
const { hex, pack, unpack } = packing;
const module = fs.readFileSync(`${folder}/${MODULE()}`);
const places = new Map();

const does = {
  digest: ({ data, person }) => hex(blake2b(bytes(data), 8, person)),
  packed: ({ value }) => hex(pack(value)),
  unpacked: ({ data }) => hex(pack(unpack(bytes(data)))),
  printable: ({ text }) => printable(text),
  ticket: ({ text }) => readTicket(text)?.name ?? null,
  plan: ({ data }) => readPlan(bytes(data)).name,
  // A plan that can be read and evaluated; numbers of its model.
  model: ({ data }) => new Model(new Core(module), readPlan(bytes(data))).numbers,
  async table({ task, text, data }) {
    const rows = await readTable(new Blob([data ? bytes(data) : text]), task);
    return { count: rows.count, x: Array.from(rows.stored.x), y: Array.from(rows.stored.y) };
  },
  // The reply of a place with the rows of a CSV file to an order, with the model given.
  async reply({ place, plan: data, csv, state, round, pairs }) {
    const key = `${place} ${data}`;
    if (!places.has(key)) {
      const plan = readPlan(bytes(data));
      const rows = await readTable(new Blob([fs.readFileSync(csv)]), plan.task);
      places.set(key, { plan, rows, model: new Model(new Core(module), plan) });
    }
    const { plan, rows, model } = places.get(key);
    model.load(bytes(state), round);
    const { scalars, loss, queries } = model.turn(round, rateAt(plan, bytes(pairs), round), rows, place);
    const [values, said] = [scalars, Float32Array.of(loss)].map((each) => new Uint8Array(each.buffer));
    return hex(pack([round, 0, model.digest(), values, said, queries]));
  },
  // Digests after updates [round, scalars, pairs] one after the other, and all at once.
  updates({ plan: data, updates }) {
    const plan = readPlan(bytes(data)), [one, all] = [0, 1].map(() => new Model(new Core(module), plan));
    const read = updates.map(([round, scalars, pairs]) => [round, bytes(scalars), rateAt(plan, bytes(pairs), round)]);
    const digests = [hex(one.digest()), ...read.map((each) => (one.apply([each]), hex(one.digest())))];
    all.apply(read);
    return { digests, last: hex(all.digest()), state: hex(one.bytes()) };
  },
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { ask, ...rest } = JSON.parse(line);
  let answer;
  try {
    answer = { found: await does[ask](rest) };
  } catch (error) {
    answer = { error: error.constructor.name, text: error.message };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
