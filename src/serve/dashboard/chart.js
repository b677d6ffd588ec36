// Rectangles on a canvas: thousands of them, looked at by pointer or by keyboard.
//
// All boxes are drawn once into a picture that is kept until the data, the window or the colours change; moving over
// them draws that picture and one frame. A box is {x0, x1, y0, y1, kind, …}; a line {axis, at, text, kind}.

import { el } from "./dom.js";
import { onAppearance, palette } from "./axes.js";
import * as paint from "./paint.js";

const MARGIN = { top: 16, right: 10, bottom: 24 };
const LEFT = 62;
/** Most that is zoomed in. */
const DEEPEST = 2000;
const ZOOM = 1.5;
const FONT = "11px system-ui, sans-serif";

export class Chart {
  /**
   * `options`: `label` (what it is, for those who do not see it), `x` and `y` (text of a tick, {binary} for bytes),
   * `title` and `facts` (text and [term, text] pairs of a box), `lanes` if y is a list of names from the top.
   */
  constructor(host, options) {
    this.options = options;
    this.canvas = el("canvas", {
      tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": options.label,
      "aria-describedby": `${host.id}-help`, "data-key": `${host.id}-canvas`,
    });
    this.tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.said = el("p", { class: "hidden", role: "status" });
    const help = "Arrow keys move between boxes, Home and End to the first and last, P to the peak, plus and minus zoom, 0 shows all.";
    host.append(this.canvas, this.tip, this.said, el("p", { id: `${host.id}-help`, class: "hidden" }, help));
    this.picture = document.createElement("canvas");
    this.selected = undefined;
    this.set({ boxes: [], x: [0, 1], y: [0, 1], lines: [] });
    new ResizeObserver(() => this.repaint()).observe(host);
    onAppearance(() => this.repaint());
    this.listen();
  }

  /** Shows other data. What was selected and zoomed stays if it is the same list, told by `same`. */
  set({ boxes, x, y, lines, lanes, peak, same }) {
    const kept = same !== undefined && same === this.data?.same;
    boxes.sort((a, b) => a.x0 - b.x0 || a.y0 - b.y0);
    this.data = { boxes, x, y, lines: lines ?? [], lanes, peak, same };
    if (!kept || !boxes[this.selected]) this.selected = undefined;
    if (!kept) this.view = { x: [...x], y: [...y] };
    this.show(this.selected, false);
    this.repaint();
  }

  // ---- geometry

  get width() { return this.canvas.clientWidth; }
  get height() { return this.canvas.clientHeight; }
  /** Room for what stands left of the plot. */
  get left() {
    const lanes = this.data.lanes?.map((lane) => this.measure(lane.text)) ?? [];
    return lanes.length > 0 ? Math.min(Math.max(...lanes) + 14, this.width * 0.3) : LEFT;
  }
  measure(text) {
    const c = this.picture.getContext("2d");
    c.font = FONT;
    return c.measureText(text).width;
  }
  plot() {
    return { x: this.left, y: MARGIN.top, w: Math.max(1, this.width - this.left - MARGIN.right),
      h: Math.max(1, this.height - MARGIN.top - MARGIN.bottom) };
  }
  /** Functions from data to pixels. Addresses grow upwards, lanes downwards. */
  scales() {
    const [p, { x, y }] = [this.plot(), this.view];
    const [sx, sy] = [p.w / (x[1] - x[0] || 1), p.h / (y[1] - y[0] || 1)];
    const down = this.data.lanes !== undefined;
    return { x: (v) => p.x + (v - x[0]) * sx, y: (v) => (down ? p.y + (v - y[0]) * sy : p.y + p.h - (v - y[0]) * sy), p };
  }
  rect(box, { x, y }) {
    // Whole pixels: thousands of boxes stay crisp, and neighbours meet without a seam.
    const [a, b] = [Math.round(y(box.y0)), Math.round(y(box.y1))];
    const [l, r] = [Math.round(x(box.x0)), Math.round(x(box.x1))];
    return [l, Math.min(a, b), Math.max(1, r - l), Math.max(1, Math.abs(b - a))];
  }
  at(px, py) {
    const s = this.scales();
    // The last drawn lies on top.
    for (let i = this.data.boxes.length - 1; i >= 0; i -= 1) {
      const [x, y, w, h] = this.rect(this.data.boxes[i], s);
      if (px >= x && px < x + w && py >= y && py < y + h) return i;
    }
    return undefined;
  }

  // ---- drawing

  repaint() {
    if (this.stale) return;
    this.stale = true;
    requestAnimationFrame(() => { this.stale = false; this.paint(); this.frame(); });
  }

  prepare(canvas) {
    const ratio = devicePixelRatio || 1;
    const [w, h] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    return context;
  }

  paint() {
    if (this.width === 0) return;
    const [c, colour, s] = [this.prepare(this.picture), palette(this.canvas), this.scales()];
    c.font = FONT;
    paint.axes(this, c, colour, s);
    c.save();
    c.beginPath();
    c.rect(s.p.x, s.p.y, s.p.w, s.p.h);
    c.clip();
    paint.boxes(this, c, colour, s);
    c.restore();
    paint.lines(this, c, colour, s);
  }

  /** The kept picture, and a frame around the box that is looked at. */
  frame() {
    if (this.width === 0 || this.picture.width === 0) return;
    const c = this.prepare(this.canvas);
    c.drawImage(this.picture, 0, 0, this.width, this.height);
    const box = this.data.boxes[this.selected];
    if (!box) return;
    const [s, colour] = [this.scales(), palette(this.canvas)];
    c.save();
    c.beginPath();
    c.rect(s.p.x - 2, s.p.y - 2, s.p.w + 4, s.p.h + 4);
    c.clip();
    const [x, y, w, h] = this.rect(box, s);
    c.lineWidth = 4;
    c.strokeStyle = colour("card");
    c.strokeRect(x - 1, y - 1, w + 2, h + 2);
    c.lineWidth = 2;
    c.strokeStyle = colour("focus");
    c.strokeRect(x - 1, y - 1, w + 2, h + 2);
    c.restore();
  }

  // ---- looking at a box

  show(index, aloud) {
    this.selected = index;
    const box = this.data.boxes[index];
    this.tip.hidden = box === undefined;
    this.canvas.dataset.selected = box ? this.options.title(box) : "";
    if (!box) return;
    const facts = this.options.facts(box);
    this.tip.replaceChildren(el("strong", {}, this.options.title(box)),
      el("dl", {}, facts.map(([term, text]) => [el("dt", {}, term), el("dd", {}, text)])));
    if (aloud) this.said.textContent = [this.options.title(box), ...facts.map(([t, v]) => `${t} ${v}`)].join(", ");
    this.place(box);
  }

  /** Beside the box, inside the chart. */
  place(box) {
    const [x, y, w] = this.rect(box, this.scales());
    const [tw, th] = [this.tip.offsetWidth, this.tip.offsetHeight];
    const right = x + w + 10;
    const left = right + tw <= this.width ? right : x - tw - 10;
    this.tip.style.left = `${Math.max(0, Math.min(left < 0 ? right : left, this.width - tw))}px`;
    this.tip.style.top = `${Math.max(0, Math.min(y, this.height - th))}px`;
  }

  look(index, aloud) {
    if (index === this.selected) return;
    this.show(index, aloud);
    requestAnimationFrame(() => this.frame());
  }

  /** The box that comes next above or below, where the one looked at is in the middle of its life. */
  neighbour(up) {
    const { boxes } = this.data;
    const from = boxes[this.selected];
    const x = (from.x0 + from.x1) / 2;
    let best;
    boxes.forEach((box, i) => {
      if (i === this.selected || box.x0 > x || box.x1 <= x) return;
      const away = up ? box.y0 - from.y0 : from.y0 - box.y0;
      if (away > 0 && (best === undefined || away < best.away)) best = { away, i };
    });
    return best?.i;
  }

  peak() {
    const at = this.data.peak;
    const alive = (box) => at !== undefined && box.x0 <= at && at < box.x1;
    let best;
    this.data.boxes.forEach((box, i) => {
      if (alive(box) && (best === undefined || box.y1 - box.y0 > best.size)) best = { size: box.y1 - box.y0, i };
    });
    return best?.i;
  }

  // ---- input

  key(name) {
    const [{ boxes, lanes }, at] = [this.data, this.selected];
    if (boxes.length === 0) return false;
    const start = at === undefined;
    const moves = {
      ArrowRight: () => (start ? 0 : Math.min(at + 1, boxes.length - 1)),
      ArrowLeft: () => (start ? boxes.length - 1 : Math.max(at - 1, 0)),
      ArrowUp: () => (start ? 0 : this.neighbour(!lanes) ?? at),
      ArrowDown: () => (start ? 0 : this.neighbour(Boolean(lanes)) ?? at),
      Home: () => 0,
      End: () => boxes.length - 1,
      PageDown: () => Math.min((at ?? 0) + 50, boxes.length - 1),
      PageUp: () => Math.max((at ?? 0) - 50, 0),
      p: () => this.peak() ?? at,
      Escape: () => undefined,
    };
    const zooms = { "+": ZOOM, "=": ZOOM, "-": 1 / ZOOM };
    if (name in moves) {
      const next = moves[name]();
      this.reveal(boxes[next]);
      this.look(next, true);
    } else if (name in zooms) {
      const box = boxes[at];
      this.zoom(zooms[name], box && (box.x0 + box.x1) / 2, box && (box.y0 + box.y1) / 2);
    } else if (name === "0") this.whole();
    else return false;
    return true;
  }

  /** Moves the view so that a box is in it. */
  reveal(box) {
    if (!box) return;
    const before = JSON.stringify(this.view);
    for (const [axis, from, to] of [["x", box.x0, box.x1], ["y", box.y0, box.y1]]) {
      const [a, b] = this.view[axis];
      if (to > a && from < b) continue;
      this.view[axis] = this.clamp(axis, (from + to) / 2 - (b - a) / 2, b - a);
    }
    if (JSON.stringify(this.view) !== before) this.repaint();
  }

  clamp(axis, from, span) {
    const [a, b] = this.data[axis];
    const start = Math.max(a, Math.min(from, b - span));
    return [start, start + span];
  }

  zoom(by, x, y) {
    for (const [axis, around] of [["x", x], ...(this.data.lanes ? [] : [["y", y]])]) {
      const [[a, b], [min, max]] = [this.view[axis], this.data[axis]];
      const span = Math.min(max - min, Math.max((b - a) / by, (max - min) / DEEPEST));
      const middle = around ?? (a + b) / 2;
      this.view[axis] = this.clamp(axis, middle - (span * (middle - a)) / (b - a || 1), span);
    }
    this.moved();
  }

  whole() {
    this.view = { x: [...this.data.x], y: [...this.data.y] };
    this.moved();
  }

  moved() {
    this.show(this.selected, false);
    this.repaint();
  }

  /** From pixels to data. */
  value(px, py) {
    const [p, { x, y }] = [this.plot(), this.view];
    const share = this.data.lanes ? (py - p.y) / p.h : 1 - (py - p.y) / p.h;
    return [x[0] + ((px - p.x) / p.w) * (x[1] - x[0]), y[0] + share * (y[1] - y[0])];
  }

  listen() {
    const on = (name, act, how) => this.canvas.addEventListener(name, act, how);
    let drag;
    on("pointermove", (e) => (drag ? this.pan(drag, e) : this.look(this.at(e.offsetX, e.offsetY), false)));
    on("pointerdown", (e) => {
      drag = { x: e.offsetX, y: e.offsetY, view: this.view };
      this.canvas.setPointerCapture(e.pointerId);
      this.look(this.at(e.offsetX, e.offsetY), false);
    });
    on("pointerup", () => { drag = undefined; });
    on("pointercancel", () => { drag = undefined; });
    on("pointerleave", () => { if (document.activeElement !== this.canvas) this.look(undefined, false); });
    on("blur", () => this.look(undefined, false));
    on("dblclick", () => this.whole());
    on("keydown", (e) => { if (!e.ctrlKey && !e.metaKey && !e.altKey && this.key(e.key)) e.preventDefault(); });
    on("wheel", (e) => {
      // Scrolling stays scrolling; with Ctrl (or pinching) it zooms.
      if (!e.ctrlKey) return;
      e.preventDefault();
      this.zoom(e.deltaY < 0 ? ZOOM : 1 / ZOOM, ...this.value(e.offsetX, e.offsetY));
    }, { passive: false });
  }

  pan(drag, e) {
    const p = this.plot();
    for (const [axis, moved] of [["x", -(e.offsetX - drag.x) / p.w], ["y", (e.offsetY - drag.y) / p.h]]) {
      if (axis === "y" && this.data.lanes) continue;
      const [a, b] = drag.view[axis];
      this.view = { ...this.view, [axis]: this.clamp(axis, a + moved * (b - a), b - a) };
    }
    this.moved();
  }
}
