// (a) Devices × bytes: what each model holds in weights, KV cache, compute buffers and workspaces, and what is free.

import { byId, datum, el, empty, render, svg, swatch } from "./dom.js";
import { bytes, exactBytes, percent } from "./units.js";

const KINDS = [["weights", "weights"], ["kv", "KV cache"], ["compute", "compute"], ["workspace", "workspace"]];

export function legend() {
  render(byId("memory-legend"), KINDS.map(([kind, name]) => swatch(kind, name)), swatch("other", "other"),
    swatch("free", "free"), swatch("limit", "limit"), swatch("bound", "lower bound of compute"));
}

const sum = (list, of) => list.reduce((total, one) => total + (one[of] ?? 0), 0);
const held = (device) => device.models.reduce((all, m) => all + KINDS.reduce((t, [kind]) => t + (m[kind] ?? 0), 0), 0);

/** `openArena(model, device)` shows the arena of a row. */
export function draw(placement, history, openArena) {
  const body = byId("memory-body");
  if (!placement?.devices?.length) return render(body, empty("No devices yet."));
  return render(body, placement.devices.map((device) => deviceRow(device, history, openArena)));
}

function deviceRow(device, history, openArena) {
  const whole = Math.max(device.limit ?? 0, (device.used ?? 0) + (device.free ?? 0), held(device), 1);
  return el("article", { class: "device", "aria-label": `Device ${device.name}`, "data-device": device.name },
    el("header", {},
      el("h3", {}, device.name), el("span", { class: "quiet" }, device.kind),
      el("span", { class: "numbers" },
        numbered("used", device.used), device.limit > 0
          ? [" of ", numbered("limit", device.limit), ", ", numbered("free", device.free), " free"]
          : ", limit not known"),
      sparkline(device, history, whole)),
    bar(device, whole),
    device.models.length > 0 && table(device, openArena));
}

const numbered = (field, value) =>
  datum(value, bytes(value), { "data-field": field, title: exactBytes(value) });

function bar(device, whole) {
  const share = (n) => `${(100 * n) / whole}%`;
  const part = (kind, n, says) => n > 0 && el("span", { class: `part kind-${kind}`, style: { width: share(n) }, title: says });
  const parts = device.models.flatMap((m) => KINDS.map(([kind, name]) =>
    part(kind, m[kind] ?? 0, `${m.model}: ${name} ${exactBytes(m[kind] ?? 0)}`)));
  const other = Math.max(0, (device.used ?? 0) - held(device));
  const before = sum(device.models, "weights") + sum(device.models, "kv");
  const says = [...KINDS.map(([kind, name]) => `${name} ${bytes(sum(device.models, kind))}`),
    other > 0 && `other ${bytes(other)}`, device.limit > 0 && `free ${bytes(device.free)}, limit ${bytes(device.limit)}`].filter(Boolean);
  // With one model the compute part is one piece, and its bound has a place in it.
  const bound = device.models.length === 1 ? device.models[0].compute_bound : undefined;
  return el("div", { class: "bar", role: "img", "aria-label": `${device.name}: ${says.join(", ")}` },
    parts, part("other", other, `other ${exactBytes(other)}`),
    device.limit > 0 && el("i", { class: "mark limit", style: { left: share(device.limit) }, title: `limit ${exactBytes(device.limit)}` }),
    bound > 0 && el("i", { class: "mark bound", style: { left: share(before + bound) }, title: `lower bound of compute ${exactBytes(bound)}` }));
}

function table(device, openArena) {
  const head = el("tr", {}, ["model", "weights", "KV", "compute", "bound", "workspace"].map((t, i) =>
    el("th", { scope: "col", class: i > 0 && "number" }, t)));
  const cell = (model, field) => el("td", { class: "number" }, numbered(field, model[field]));
  const row = (model) => el("tr", { "data-model": model.model },
    el("th", { scope: "row" }, el("button", {
      type: "button", class: "link", "data-key": `open ${device.name} ${model.model}`,
      title: `Show the arena of ${model.model} on ${device.name}`, onclick: () => openArena(model.model, device.name),
    }, model.model)),
    cell(model, "weights"), cell(model, "kv"), cell(model, "compute"), cell(model, "compute_bound"),
    cell(model, "workspace"));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, device.models.map(row))));
}

const SPARK = { w: 96, h: 18 };

/** Used bytes over the history that the service keeps. */
function sparkline(device, history, whole) {
  const seen = (history?.entries ?? []).map((e) => [e.at_us, e.devices.find((d) => d.name === device.name)?.used])
    .filter(([, used]) => used !== undefined);
  if (seen.length < 2) return undefined;
  const [from, to] = [seen[0][0], seen.at(-1)[0]];
  const x = (at) => (SPARK.w * (at - from)) / Math.max(1, to - from);
  const y = (used) => SPARK.h - 1 - ((SPARK.h - 2) * used) / whole;
  // Steps: what is used stays until the next entry.
  const points = seen.flatMap(([at, used], i) => [...(i > 0 ? [[x(at), y(seen[i - 1][1])]] : []), [x(at), y(used)]]);
  const most = Math.max(...seen.map(([, used]) => used));
  return svg("svg", { class: "spark", viewBox: `0 0 ${SPARK.w} ${SPARK.h}`, role: "img",
    "aria-label": `Used over ${seen.length} changes, at most ${bytes(most)}` },
  svg("title", {}, `Used over the last ${seen.length} changes: at most ${bytes(most)}, ${percent(most / whole)}`),
  svg("polyline", { points: points.map((p) => p.map((n) => n.toFixed(1)).join(",")).join(" ") }));
}
