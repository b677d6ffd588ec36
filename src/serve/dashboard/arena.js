// (b) The arena of a device: steps × addresses, a rectangle for every tensor.

import { arenaPath, get } from "./api.js";
import { Chart } from "./chart.js";
import { byId, datum, el, empty, fact, options, render, swatch } from "./dom.js";
import { bytes, count, exactBytes, percent, roundBytes } from "./units.js";

const CLASSES = [
  ["op-product", "products", /^(MUL_MAT|OUT_PROD|CONV|FLASH_ATTN)/],
  ["op-norm", "norms and softmax", /(NORM|SOFT_MAX)/],
  ["op-rope", "positions", /^ROPE/],
  ["copy", "copies and moves", /(CPY|CONT|DUP|COPY|GET_ROWS|SET_ROWS|CONCAT|RESHAPE|VIEW|PERMUTE|TRANSPOSE)/],
  ["op-input", "inputs and their copies", /^(NONE|INPUT|LEAF)?$/],
];
const REST = ["op-element", "element by element"];
/** Tensors of the peak that are named one by one. */
const NAMED = 12;

const classOf = (op) => CLASSES.find(([, , pattern]) => pattern.test(String(op ?? "").toUpperCase())) ?? REST;

let chart;
let shown;

export function setUp() {
  const host = byId("arena-chart");
  const label = "Arena: steps from left to right, addresses from the bottom up, a box for every tensor.";
  chart = new Chart(host, { label, binary: true, x: count, y: roundBytes, title: (b) => b.name, facts });
  render(byId("arena-legend"), [...CLASSES, REST].map(([kind, name]) => swatch(kind, name)),
    swatch("bound", "lower bound"), swatch("peak", "peak step"));
  for (const id of ["arena-model", "arena-device", "arena-graph"]) byId(id).addEventListener("change", () => load());
}

const facts = (box) => [
  ["op", String(box.tensor.op)],
  ["bytes", exactBytes(box.tensor.bytes)],
  ["at", `chunk ${box.tensor.chunk}, offset ${count(box.tensor.offset)}`],
  ["life", `steps ${box.tensor.first} to ${box.tensor.last}`],
  ["cause", String(box.tensor.cause)],
];

/** What can be chosen comes from the placement; `wanted` is {model, device} if somebody asked for one. */
export function choose(placement, wanted) {
  const arenas = (placement?.models ?? []).filter((m) => m.arenas?.length > 0);
  const model = options(byId("arena-model"), arenas.map((m) => [m.id, m.id]), wanted?.model);
  const devices = [...new Set((arenas.find((m) => m.id === model)?.arenas ?? []).map((a) => a.device))];
  options(byId("arena-device"), devices.map((d) => [d, d]), wanted?.device);
  return load(placement?.version);
}

/** Asks for the chosen arena. With the version that is shown already, nothing is asked. */
async function load(version = shown?.version) {
  const [model, device, graph] = ["arena-model", "arena-device", "arena-graph"].map((id) => byId(id).value);
  const key = JSON.stringify([version, model, device, graph]);
  if (key === shown?.key) return;
  shown = { key, version };
  if (!model || !device) return draw(undefined);
  try {
    const arena = await get(arenaPath(model, device, graph));
    if (shown.key === key) draw(arena, key);
  } catch (error) {
    if (shown.key !== key) return;
    shown = undefined;
    draw(undefined, key, `No arena of this graph here (${error.message}).`);
  }
}

function draw(arena, key, why = "No arena is reserved.") {
  if (!arena) {
    chart.set({ boxes: [], x: [0, 1], y: [0, 1] });
    render(byId("arena-facts"), fact("", why));
    return render(byId("arena-peak"));
  }
  const bases = chunkBases(arena.tensors);
  const boxes = arena.tensors.map((t) => ({ tensor: t, name: String(t.name), kind: classOf(t.op)[0],
    x0: t.first, x1: Math.max(t.last, t.first + 1), y0: bases.get(t.chunk) + t.offset, y1: bases.get(t.chunk) + t.offset + t.bytes }));
  const top = Math.max(arena.size, arena.bound, ...ends(boxes), 1);
  const lines = [{ axis: "y", at: arena.bound, text: `lower bound ${bytes(arena.bound)}`, kind: "bound" },
    { axis: "x", at: arena.peak_step + 0.5, text: `peak: step ${arena.peak_step}`, kind: "peak" }];
  chart.set({ boxes, x: [0, Math.max(arena.steps, 1)], y: [0, top * 1.04], lines, peak: arena.peak_step, same: key });
  render(byId("arena-facts"), summary(arena, bases.size));
  return render(byId("arena-peak"), peakOf(arena));
}

/** The highest end, without spreading thousands of arguments. */
const ends = (boxes) => [boxes.reduce((most, b) => Math.max(most, b.y1), 0)];

/** Chunks lie above each other, each as long as its last tensor. */
function chunkBases(tensors) {
  const lengths = new Map();
  for (const t of tensors) lengths.set(t.chunk, Math.max(lengths.get(t.chunk) ?? 0, t.offset + t.bytes));
  const bases = new Map();
  let base = 0;
  for (const chunk of [...lengths.keys()].sort((a, b) => a - b)) {
    bases.set(chunk, base);
    base += lengths.get(chunk);
  }
  return bases;
}

function summary(arena, chunks) {
  const gap = arena.bound > 0 ? arena.size / arena.bound - 1 : 0;
  return [
    fact("size", datum(arena.size, bytes(arena.size), { "data-field": "size", title: exactBytes(arena.size) })),
    fact("lower bound", datum(arena.bound, bytes(arena.bound), { "data-field": "bound", title: exactBytes(arena.bound) })),
    fact("above it", gap <= 0 ? "nothing: no plan is smaller" : percent(gap)),
    fact("tensors", datum(arena.tensors.length, count(arena.tensors.length), { "data-field": "tensors" })),
    fact("steps", datum(arena.steps, count(arena.steps), { "data-field": "steps" })),
    fact("chunks", count(chunks)),
  ];
}

/** What the peak is made of, largest first. */
function peakOf(arena) {
  const at = arena.peak_step;
  const alive = arena.tensors.filter((t) => t.first <= at && at < Math.max(t.last, t.first + 1)).sort((a, b) => b.bytes - a.bytes);
  const total = alive.reduce((n, t) => n + t.bytes, 0);
  if (alive.length === 0) return empty("Nothing is alive at the peak step.");
  const rest = alive.slice(NAMED);
  const row = (name, op, n, kind) => el("tr", {},
    el("th", { scope: "row" }, el("span", { class: `swatch kind-${kind}`, "aria-hidden": "true" }), name, el("small", { class: "quiet" }, ` ${op}`)),
    el("td", { class: "number" }, datum(n, bytes(n), { title: exactBytes(n) })));
  return [
    el("h3", {}, `Peak: step ${at}`),
    el("p", { class: "quiet" }, datum(total, bytes(total), { "data-field": "peak", title: exactBytes(total) }), ` in ${count(alive.length)} tensors`),
    el("table", { class: "peak" }, el("tbody", {},
      alive.slice(0, NAMED).map((t) => row(String(t.name), t.op === "NONE" ? "" : String(t.op), t.bytes, classOf(t.op)[0])),
      rest.length > 0 && row(`${rest.length} more`, "", rest.reduce((n, t) => n + t.bytes, 0), "other"))),
  ];
}
