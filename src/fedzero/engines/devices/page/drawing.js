// A field to draw in, and what is drawn as 28×28 numbers: as in MNIST, the strokes fit a square of 20, and their centre of
// mass is in the middle.
export const SIDE = 28;
const INNER = 20, CELLS = 56, PEN = 4.6;

export class Drawing {
  // changed(): after every stroke. entered(): of the keyboard.
  constructor(canvas, changed, entered) {
    Object.assign(this, { canvas, changed, strokes: [], at: [CELLS / 2, CELLS / 2], down: false, shown: false });
    this.context = canvas.getContext('2d');
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * CELLS, ((event.clientY - box.top) / box.height) * CELLS];
    };
    canvas.addEventListener('pointerdown', (event) => {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      this.pointer = event.pointerId;
      this.shown = false;
      this.begin(place(event));
    });
    canvas.addEventListener('pointermove', (event) => {
      if (event.pointerId !== this.pointer) return;
      for (const each of event.getCoalescedEvents?.() ?? [event]) this.go(place(each));
      this.go(place(event));
    });
    const lift = (event) => {
      if (event.pointerId !== this.pointer) return;
      this.pointer = undefined;
      this.changed();
    };
    for (const kind of ['pointerup', 'pointercancel']) canvas.addEventListener(kind, lift);
    canvas.addEventListener('keydown', (event) => this.key(event, entered));
    canvas.addEventListener('blur', () => this.hide());
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.paint());
    this.paint();
  }

  hide() {
    [this.shown, this.down] = [false, false];
    this.paint();
  }

  key(event, entered) {
    const by = { ArrowLeft: [-2, 0], ArrowRight: [2, 0], ArrowUp: [0, -2], ArrowDown: [0, 2] }[event.key];
    if (event.key === 'Enter') entered();
    else if (event.key === ' ') {
      this.down = !this.down;
      if (this.down) this.begin(this.at);
      this.changed();
    } else if (by) {
      this.at = this.at.map((value, i) => Math.min(CELLS - 2, Math.max(2, value + by[i])));
      if (this.down) {
        this.go(this.at);
        this.changed();
      }
    } else return;
    event.preventDefault();
    this.shown = true;
    this.paint();
  }

  begin(point) {
    this.strokes.push([point]);
    this.paint();
  }

  go(point) {
    this.strokes.at(-1)?.push(point);
    this.paint();
  }

  wipe() {
    [this.strokes, this.down] = [[], false];
    this.paint();
  }

  get empty() {
    return !this.strokes.length;
  }

  paint() {
    const { context, canvas } = this, style = getComputedStyle(canvas), scale = canvas.width / CELLS;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    trace(context, this.strokes, style.color, PEN);
    if (!this.shown) return;
    context.strokeStyle = style.getPropertyValue('--accent');
    context.lineWidth = this.down ? 1.2 : 0.6;
    context.beginPath();
    context.arc(...this.at, PEN / 2 + 1, 0, 7);
    context.stroke();
  }

  // 784 numbers from 0 to 1, or nothing if the field is empty.
  pixels() {
    if (this.empty) return null;
    const points = this.strokes.flat(), [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
    const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const scale = INNER / (Math.max(right - left, bottom - top) + PEN);
    const middle = [(left + right) / 2, (top + bottom) / 2];
    const first = raster(this.strokes, scale, middle, [SIDE / 2, SIDE / 2]);
    const total = first.reduce((sum, value) => sum + value, 0) || 1;
    const centre = first.reduce(([x, y], value, i) => [x + value * ((i % SIDE) + 0.5), y + value * (Math.floor(i / SIDE) + 0.5)], [0, 0]);
    const moved = centre.map((value) => SIDE - SIDE / 2 - Math.round(value / total - SIDE / 2));
    return raster(this.strokes, scale, middle, moved);
  }
}

function trace(context, strokes, colour, width) {
  Object.assign(context, { strokeStyle: colour, lineWidth: width, lineCap: 'round', lineJoin: 'round' });
  for (const stroke of strokes) {
    context.beginPath();
    context.moveTo(...stroke[0]);
    for (const point of stroke) context.lineTo(...point);
    context.stroke();
  }
}

// The ink in each of 28×28 cells, of strokes moved so that `middle` comes to `to`.
function raster(strokes, scale, middle, to) {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = SIDE;
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.setTransform(scale, 0, 0, scale, to[0] - scale * middle[0], to[1] - scale * middle[1]);
  trace(context, strokes, '#000', Math.max(PEN, 2.2 / scale));
  const { data } = context.getImageData(0, 0, SIDE, SIDE);
  return Float32Array.from({ length: SIDE * SIDE }, (_, i) => data[4 * i + 3] / 255);
}
