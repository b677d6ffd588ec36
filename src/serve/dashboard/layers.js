// (d) Placement by layer, with causes and changes; and the pools and links that it is made for.

import { byId, datum, el, empty, render } from "./dom.js";
import { bandwidth, bytes, exactBytes, time } from "./units.js";

const LAYERS_IN_A_ROW_SAME = (a, b) => a.device === b.device && a.cause === b.cause && String(a.changed) === String(b.changed);

export function draw(placement) {
  const models = placement?.models ?? [];
  if (models.length === 0) return render(byId("layers-body"), empty("No model is loaded."));
  const devices = (placement.devices ?? []).map((d) => d.name);
  return render(byId("layers-body"), models.map((m) => modelOf(m, devices)));
}

function modelOf(model, devices) {
  const layers = model.layers ?? [];
  const state = [model.state, model.pinned && "pinned", model.idle_ms > 0 && `idle ${time(model.idle_ms * 1000)}`].filter(Boolean);
  const moved = layers.filter(hasChanged).length;
  return el("article", { class: "model", "data-model": model.id },
    el("header", {}, el("h3", {}, model.id), el("span", { class: "quiet" }, state.join(", ")),
      el("span", { class: "numbers" }, moved > 0 ? `${moved} of ${layers.length} layers changed` : `${layers.length} ${layers.length === 1 ? "layer" : "layers"}, none changed`)),
    strip(layers, devices),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ["layers", "device", "cause"].map((t) => el("th", { scope: "col" }, t)))),
      el("tbody", {}, runs(layers).map(row)))));
}

const hasChanged = (layer) => Boolean(layer.changed);
const said = (changed) => (typeof changed === "string" ? changed : "moved since the last plan");
const nameOf = (layer) => (/^\d+$/.test(layer.layer) ? `layer ${layer.layer}` : String(layer.layer));

/** A cell for every layer: the number of its device, marked if it changed. */
function strip(layers, devices) {
  const cell = (layer) => {
    const at = Math.max(0, devices.indexOf(layer.device));
    const says = `${nameOf(layer)}: ${layer.device}, ${layer.cause}${hasChanged(layer) ? `, ${said(layer.changed)}` : ""}`;
    return el("li", { class: `cell device-${at % 8}${hasChanged(layer) ? " changed" : ""}`, title: says, "data-device": layer.device },
      el("span", { class: "hidden" }, says));
  };
  const used = devices.map((name, at) => [name, at]).filter(([name]) => layers.some((l) => l.device === name));
  return el("div", {},
    el("ol", { class: "strip", "aria-label": "Layers in order" }, layers.map(cell)),
    el("ul", { class: "legend", "aria-label": "Colours of devices" }, used.map(([name, at]) =>
      el("li", {}, el("span", { class: `swatch device-${at % 8}`, "aria-hidden": "true" }), name))));
}

/** Layers that follow each other with the same device and cause. */
function runs(layers) {
  const found = [];
  for (const layer of layers) {
    const run = found.at(-1);
    if (run && LAYERS_IN_A_ROW_SAME(run.last, layer)) run.last = layer;
    else found.push({ first: layer, last: layer });
  }
  return found;
}

function row({ first, last }) {
  const range = first === last ? String(first.layer) : `${first.layer} to ${last.layer}`;
  return el("tr", {}, el("th", { scope: "row" }, range), el("td", {}, first.device),
    el("td", {}, String(first.cause), hasChanged(first) && el("em", { class: "changed" }, ` ${said(first.changed)}`)));
}

/** Pools and links of the machine. */
export function drawLinks(answer) {
  const devices = answer?.devices ?? [];
  if (devices.length === 0) return render(byId("links-body"), empty("No devices yet."));
  const pools = devices.flatMap((d) => (d.pools ?? []).map((p) => el("tr", {}, el("th", { scope: "row" }, d.name), el("td", {}, p.name),
    el("td", { class: "number" }, datum(p.free, bytes(p.free), { title: exactBytes(p.free) })),
    el("td", { class: "number" }, datum(p.total, bytes(p.total), { title: exactBytes(p.total) })))));
  const links = devices.flatMap((d) => (d.links ?? []).map((l) => el("tr", {}, el("th", { scope: "row" }, `${d.name} → ${l.to}`), el("td", {}, l.path),
    el("td", {}, l.why), el("td", { class: "number" }, bandwidth(l.bandwidth)))));
  return render(byId("links-body"),
    tableOf(["device", "pool", "free", "total"], pools), links.length > 0 && tableOf(["link", "path", "why", "speed"], links));
}

const NUMERIC = new Set(["free", "total", "speed"]);
const tableOf = (titles, rows) => el("div", { class: "scroll" }, el("table", {},
  el("thead", {}, el("tr", {}, titles.map((t) => el("th", { scope: "col", class: NUMERIC.has(t) && "number" }, t)))), el("tbody", {}, rows)));
