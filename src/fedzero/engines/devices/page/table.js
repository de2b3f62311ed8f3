// A CSV file as rows: numbers in the order of the plan's columns, or under their names, and a label. A file with a line
// that is wrong is refused as a whole, by line.
import { Hopeless } from './errors.js';
import { printable } from './plan.js';
import { Rows } from './rows.js';

const MOST_LINE = 1 << 22, MOST_SHOWN = 6, LABELS = ['label', 'y', 'class', 'target'];
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

const quoted = (text) => `“${printable(text, 40)}”`;

function cells(line, separator) {
  const plain = (text) => text.trim();
  if (!line.includes('"')) return line.split(separator).map(plain);
  const found = [''];
  let inside = false;
  for (let i = 0; i < line.length; i++) {
    if (line[i] === '"' && inside && line[i + 1] === '"') found[found.length - 1] += line[++i];
    else if (line[i] === '"') inside = !inside;
    else if (line[i] === separator && !inside) found.push('');
    else found[found.length - 1] += line[i];
  }
  return found.map(plain);
}

class Table {
  constructor(task) {
    Object.assign(this, { task, rows: new Rows(task), inputs: task.widths[0], line: 0, wrong: [], count: 0 });
  }

  note(text) {
    this.count += 1;
    if (this.wrong.length < MOST_SHOWN) this.wrong.push(`Line ${this.line}: ${text}.`);
  }

  take(line) {
    this.line += 1;
    if (!line.trim()) return;
    if (!this.separator) {
      if (this.begin(line)) return;
    }
    this.row(cells(line, this.separator));
  }

  // The first line says what separates, and where the columns are; whether it is a header.
  begin(line) {
    const counts = [',', ';', '\t'].map((each) => [cells(line, each).length, each]);
    this.separator = counts.reduce((most, each) => (each[0] > most[0] ? each : most))[1];
    const first = cells(line, this.separator), header = !first.some((text) => NUMBER.test(text));
    if (header) this.named(first.map((text) => text.toLowerCase()));
    else this.order = Array.from({ length: this.inputs + 1 }, (_, i) => i);
    if (!header && first.length !== this.inputs + 1) throw new Hopeless(this.wanted(first.length));
    return header;
  }

  wanted(found) {
    const one = this.inputs === 1 ? 'one number' : `${this.inputs} numbers`;
    return `The first line has ${found} fields. A line of this run has ${one} and, as the last field, a label.`;
  }

  named(names) {
    const twice = names.find((name, i) => name && names.indexOf(name) !== i);
    if (twice) throw new Hopeless(`Two columns have the name ${quoted(twice)}.`);
    const label = names.findIndex((name) => LABELS.includes(name)), columns = this.task.columns.map((name) => name.toLowerCase());
    const last = label < 0 ? names.length - 1 : label;
    if (columns.length) {
      const missing = columns.filter((name) => !names.includes(name));
      if (missing.length) throw new Hopeless(`The file has no column ${missing.slice(0, 4).map(quoted).join(', ')}.`);
      if (label < 0 && columns.includes(names[last])) throw new Hopeless('The file has no column “label”.');
      this.order = [...columns.map((name) => names.indexOf(name)), last];
    } else {
      if (names.length !== this.inputs + 1) throw new Hopeless(this.wanted(names.length));
      this.order = [...names.keys()].filter((i) => i !== last).concat(last);
    }
    this.fields = names.length;
  }

  row(found) {
    const fields = this.fields ?? this.inputs + 1;
    if (found.length !== fields) return this.note(`${found.length} fields where there should be ${fields}`);
    const numbers = new Float64Array(this.inputs);
    for (let i = 0; i < this.inputs; i++) {
      const text = found[this.order[i]];
      if (!NUMBER.test(text)) return this.note(`${this.name(i)} is not a number: ${quoted(text)}`);
      numbers[i] = Math.fround(Number(text));
    }
    const label = this.label(found[this.order[this.inputs]]);
    if (label < 0) return;
    const why = this.rows.add(numbers, label);
    if (why) this.note(why);
  }

  name(i) {
    return this.task.columns[i] ? `column ${quoted(this.task.columns[i])}` : `column ${this.order[i] + 1}`;
  }

  label(text) {
    const { labels, widths } = this.task, most = widths.at(-1) - 1, named = labels.indexOf(text);
    if (named >= 0) return named;
    if (/^\d+(\.0*)?$/.test(text) && Number(text) <= most) return Number(text);
    const names = labels.length ? `${labels.slice(0, 12).join(', ')}${labels.length > 12 ? ', …' : ''}, or ` : '';
    this.note(`the label ${quoted(text)} is none of ${names}0 to ${most}`);
    return -1;
  }
}

// Rows of a file. progress(share): from 0 to 1.
export async function readTable(file, task, progress = () => {}) {
  const table = new Table(task), reader = file.stream().getReader(), decoder = new TextDecoder('utf-8', { fatal: true });
  let rest = '', read = 0;
  for (let over = false; !over && table.count < 1000; ) {
    const { done, value } = await reader.read();
    over = done;
    read += value?.length ?? 0;
    try {
      rest += decoder.decode(value, { stream: !done });
    } catch {
      throw new Hopeless('The file is no text in UTF-8: save it as CSV.');
    }
    const lines = rest.split(/\r\n|\n|\r(?=[^\n])/);
    rest = done ? '' : lines.pop();
    if (rest.length > MOST_LINE) throw new Hopeless('The file has a line of more than 4 MB: is it a CSV file?');
    for (const line of lines) table.take(line);
    progress(file.size ? read / file.size : 1);
  }
  await reader.cancel();
  if (table.count) {
    const more = table.count - table.wrong.length;
    const rest = more > 0 ? [`And ${more.toLocaleString('en')}${table.count < 1000 ? '' : ' or more'} other lines.`] : [];
    throw new Hopeless([`No row was taken.`, ...table.wrong, ...rest].join('\n'));
  }
  if (!table.rows.count) throw new Hopeless('The file has no rows.');
  return table.rows;
}
