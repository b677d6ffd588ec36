// (c) Splits and copies of the last requests over time: a lane for each device's queue and for each link.

import { get, tracePath } from "./api.js";
import { Chart } from "./chart.js";
import { byId, datum, fact, options, render, swatch } from "./dom.js";
import { bytes, count, exactBytes, time } from "./units.js";

const LANE_HEIGHT = 30;
/** Of a lane, what its boxes leave free above and below. */
const AIR = 0.14;

let chart;
let shown;

export function setUp() {
  const label = "Time from left to right, a lane for each device and link, a box for each split, copy and wait.";
  chart = new Chart(byId("trace-chart"), { label, x: time, y: String, title: (b) => b.name, facts });
  render(byId("trace-legend"), swatch("compute", "split"), swatch("copy", "copy"), swatch("sync", "wait"));
  byId("trace").addEventListener("change", () => load());
}

const facts = ({ span, from }) => [
  ["device", String(span.device)],
  ["kind", String(span.kind)],
  ["start", time(from)],
  ["length", time(span.end_us - span.start_us)],
  ...(span.bytes ? [["bytes", exactBytes(span.bytes)]] : []),
  ...(span.link ? [["link", String(span.link)]] : []),
];

/** Offers the requests that the service keeps, newest first; a new one is shown unless an older one was chosen. */
export function offer(traces) {
  const list = [...(traces?.traces ?? [])].sort((a, b) => b.started_us - a.started_us);
  const select = byId("trace");
  const followed = select.selectedIndex <= 0;
  const text = (t) => `${t.model}: ${count(t.tokens)} tokens in ${time(t.duration_us)} (${t.id})`;
  options(select, list.map((t) => [String(t.id), text(t)]), followed ? String(list[0]?.id) : undefined);
  return load();
}

async function load() {
  const id = byId("trace").value;
  if (id === shown) return;
  shown = id;
  if (!id) return draw({ spans: [] });
  try {
    const trace = await get(tracePath(id));
    if (shown === id) draw(trace);
  } catch (error) {
    if (shown === id) draw({ spans: [] }, `This request is not kept any more (${error.message}).`);
  }
}

const laneOf = (span) => (span.kind === "copy" ? String(span.link || `${span.device} copies`) : String(span.device));

/** Devices in order of their first span, each followed by the links that lead to it. */
function lanesOf(spans) {
  const lanes = new Map();
  const devices = [...new Set(spans.map((s) => String(s.device)))].sort();
  for (const device of devices) {
    for (const own of [true, false]) {
      for (const span of spans) {
        const text = laneOf(span);
        if (String(span.device) === device && (span.kind !== "copy") === own && !lanes.has(text)) lanes.set(text, { text, quiet: !own, at: lanes.size });
      }
    }
  }
  return lanes;
}

function draw(trace, why = "No request has run yet.") {
  const spans = trace.spans ?? [];
  const lanes = lanesOf(spans);
  const start = spans.reduce((least, s) => Math.min(least, s.start_us), Infinity);
  const end = spans.reduce((most, s) => Math.max(most, s.end_us), 0);
  const kinds = { split: "compute", copy: "copy", sync: "sync" };
  const boxes = spans.map((span) => {
    const { at } = lanes.get(laneOf(span));
    return { span, name: String(span.name), kind: kinds[span.kind] ?? "other", from: span.start_us - start, x0: span.start_us - start, x1: Math.max(span.end_us, span.start_us) - start, y0: at + AIR, y1: at + 1 - AIR };
  });
  byId("trace-chart").style.setProperty("height", `${Math.max(3, lanes.size) * LANE_HEIGHT + 40}px`);
  chart.set({ boxes, lanes: [...lanes.values()], x: [0, spans.length > 0 ? Math.max(end - start, 1) : 1], y: [0, Math.max(1, lanes.size)], same: trace.id });
  render(byId("trace-facts"), spans.length === 0 ? fact("", why) : summary(trace, spans, end - start));
}

function summary(trace, spans, length) {
  const of = (kind) => spans.filter((s) => s.kind === kind);
  const moved = of("copy").reduce((n, s) => n + (s.bytes ?? 0), 0);
  const busy = of("split").reduce((n, s) => n + s.end_us - s.start_us, 0);
  return [
    fact("span", time(length)),
    fact("splits", datum(of("split").length, count(of("split").length), { "data-field": "splits" })),
    fact("copies", datum(of("copy").length, count(of("copy").length), { "data-field": "copies" })),
    fact("copied", datum(moved, bytes(moved), { "data-field": "copied", title: exactBytes(moved) })),
    fact("computing", time(busy)),
    trace.left_out > 0 && fact("left out", `${count(trace.left_out)} earlier spans`),
  ];
}
