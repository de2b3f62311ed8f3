// The binary plan of a run, as values. Whatever this client cannot follow is refused in a sentence.
import { Hopeless } from './errors.js';
import { fields, unpack } from './packing.js';

export const RADEMACHER = 2, RANK_ONE = 4, SGD = 0, MOMENTUM = 1, CENTRAL = 2, ALL = 2;
const MOST_NUMBERS = 1 << 26, MOST_DIRECTIONS = 1 << 16, MOST_STEPS = 1 << 12, MOST_LAYERS = 8, MOST_CLASSES = 256;
const MOST_ROWS = 1 << 20, LONGEST = 64, MOST_TENSORS = 1 << 10;

const product = (shape) => shape.reduce((a, b) => a * b, 1);

// A text of the gateway as one line: no control characters, and none that turn the direction of what stands beside.
export const printable = (text, longest = 200) =>
  Array.from(text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}]/gu, ' ')).slice(0, longest).join('').trim();

function tensor(value) {
  const [type, shape, scale, label] = fields(value, 'a tensor', 'nat', 'array', 'float', 'bytes');
  refuse(type !== 1, `a tensor of type ${type}`);
  fields(shape, 'a shape', ...shape.map(() => 'nat'));
  return { shape, scale, label, count: product(shape) };
}

function method(value) {
  const names = ['distribution', 'rule', 'rate', 'hypers', 'radius', 'directions', 'steps', 'difference', 'clip', 'batch', 'samples'];
  const kinds = ['nat', 'nat', 'float', 'array', 'float', 'nat', 'nat', 'nat', 'float', 'nat', 'nat'];
  const found = fields(value, 'the method', ...kinds);
  fields(found[3], 'the numbers of the rule', ...found[3].map(() => 'float'));
  return Object.fromEntries(names.map((name, i) => [name, found[i]]));
}

function task(value) {
  const kinds = ['nat', 'array', 'array', 'array', 'array', 'array', 'nat'];
  const [model, widths, mean, deviation, labels, columns, least] = fields(value, 'the task', ...kinds);
  refuse(model !== 1, `a model of kind ${model}`);
  for (const [list, kind] of [[widths, 'nat'], [mean, 'float'], [deviation, 'float'], [labels, 'text'], [columns, 'text']])
    for (const each of list) fields([each], 'a list of the task', kind);
  const short = (list) => list.map((text) => printable(text, LONGEST));
  return { widths, mean, deviation, labels: short(labels), columns: short(columns), least };
}

function refuse(holds, what) {
  if (holds) throw new Hopeless(`The run has ${what}, which this page cannot do.`);
}

export function readPlan(bytes) {
  const kinds = ['nat', 'nat', 'text', 32, 'nat', 'nat', 'array', 'array', 'array'];
  const [version, stream, name, root, places, rounds, tensors, how, about] = fields(unpack(bytes), 'the plan', ...kinds);
  if (version !== 1 || stream !== 1) throw new Hopeless(`The run has another version of the plan (${version}), which this page cannot do.`);
  refuse(tensors.length > MOST_TENSORS, `${tensors.length} tensors`);
  const plan = { name: printable(name), root, places, rounds, tensors: tensors.map(tensor), method: method(how), task: task(about) };
  check(plan);
  return plan;
}

function check({ tensors, method: m, task: t }) {
  const shapes = t.widths.slice(1).flatMap((outputs, i) => [[outputs, t.widths[i]], [outputs]]);
  const numbers = tensors.reduce((sum, each) => sum + each.count, 0);
  const [inputs, classes] = [t.widths[0], t.widths.at(-1)];
  refuse(!(numbers <= MOST_NUMBERS), `a model of ${numbers.toLocaleString('en')} numbers`);
  refuse(t.widths.length < 2 || t.widths.length > MOST_LAYERS + 1, `${t.widths.length - 1} layers`);
  refuse(classes < 2 || classes > MOST_CLASSES, `${classes} labels`);
  refuse(JSON.stringify(tensors.map((each) => each.shape)) !== JSON.stringify(shapes), 'tensors that are not those of a perceptron');
  refuse(m.distribution !== RADEMACHER && m.distribution !== RANK_ONE, `directions of kind ${m.distribution}`);
  refuse(m.rule !== SGD && m.rule !== MOMENTUM, `the rule ${m.rule}`);
  refuse(m.rule === MOMENTUM && m.hypers.length < 2, 'a momentum without its two numbers');
  refuse(m.difference !== 1 && m.difference !== CENTRAL, `differences of kind ${m.difference}`);
  refuse(m.samples !== 1 && m.samples !== ALL, `samples of kind ${m.samples}`);
  refuse(!(m.radius > 0) || m.clip < 0, 'a radius or a clip that is no such number');
  refuse(!m.directions || m.directions > MOST_DIRECTIONS, `${m.directions} directions`);
  refuse(!m.steps || m.steps > MOST_STEPS, `${m.steps} local steps`);
  refuse(!m.batch || m.batch > MOST_ROWS, `a batch of ${m.batch} rows`);
  refuse(!inputs || [t.mean, t.deviation].some((c) => c.length !== 1 && c.length !== inputs), 'columns of another number');
  refuse(t.deviation.some((each) => !(Math.fround(each) > 0)), 'a deviation that is not above 0');
  refuse(t.labels.length && t.labels.length !== classes, `${t.labels.length} names for ${classes} labels`);
  refuse(t.columns.length && t.columns.length !== inputs, `${t.columns.length} names for ${inputs} columns`);
}

// η of a round, from the pairs of a message.
export function rateAt(plan, pairs, round) {
  const view = new DataView(pairs.buffer, pairs.byteOffset, pairs.length);
  let rate = plan.method.rate;
  for (let at = 0; at + 16 <= pairs.length; at += 16)
    if (Number(view.getBigUint64(at, true)) <= round) rate = view.getFloat64(at + 8, true);
  return rate;
}
