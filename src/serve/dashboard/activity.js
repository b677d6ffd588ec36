// (e) Speed, queue, bytes moved, plan cache; and the events as they come.

import { byId, datum, el, fact, options, render, svg } from "./dom.js";
import { bytes, count, exactBytes, percent, rate } from "./units.js";

/** Events that are kept. */
const KEPT = 300;
/** Values of the line behind the speed. */
const SPEEDS = 90;
const SPARK = { w: 96, h: 18 };

const speeds = [];

export function note(stats) {
  if (typeof stats.tokens_per_second !== "number") return;
  speeds.push(stats.tokens_per_second);
  if (speeds.length > SPEEDS) speeds.shift();
}

export function drawStats(stats) {
  const s = stats ?? {};
  const plans = (s.plans_made ?? 0) + (s.plans_reused ?? 0);
  const number = (field, text = count) => datum(s[field] ?? "", text(s[field]), { "data-field": field });
  render(byId("stats"),
    fact("tokens a second", number("tokens_per_second", rate), spark()),
    fact("running", number("running")),
    fact("queue", number("queue")),
    fact("bytes moved", datum(s.bytes_moved ?? "", bytes(s.bytes_moved), { "data-field": "bytes_moved", title: exactBytes(s.bytes_moved) })),
    fact("plans made", number("plans_made")),
    fact("plans reused", number("plans_reused"), plans > 0 && el("small", { class: "quiet" }, ` ${percent(s.plans_reused / plans)}`)),
    fact("requests", number("requests")),
    fact("failures", el("span", { class: s.failures > 0 && "bad" }, number("failures"))));
}

function spark() {
  if (speeds.length < 2) return undefined;
  const top = Math.max(...speeds, 1e-9);
  const points = speeds.map((v, i) => `${((SPARK.w * (i + SPEEDS - speeds.length)) / (SPEEDS - 1)).toFixed(1)},${(SPARK.h - 1 - ((SPARK.h - 2) * v) / top).toFixed(1)}`);
  return svg("svg", { class: "spark", viewBox: `0 0 ${SPARK.w} ${SPARK.h}`, "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }));
}

// ---- events

const log = [];
const KINDS = ["reserve", "grow", "bind", "copy_path", "admission", "eviction", "load", "unload", "failure", "request"];
const COMMON = new Set(["seq", "at_us", "kind"]);
/** Fields that are bytes by their meaning. */
const BYTES = /(^|_)(bytes|size|bound|used|free|needed|available|deficit|limit|weights|kv|compute)$/;

export function setUp() {
  options(byId("log-kind"), [["", "all"], ...KINDS.map((k) => [k, k.replace("_", " ")])]);
  byId("log-kind").addEventListener("change", drawLog);
  drawLog();
}

/** Keeps an event; the same one again, after a new connection, is not kept twice. */
export function remember(event) {
  if (event.seq !== undefined && log.some((e) => e.seq === event.seq)) return;
  log.unshift(event);
  if (log.length > KEPT) log.pop();
}

export function drawLog() {
  const kind = byId("log-kind").value;
  const found = log.filter((e) => kind === "" || e.kind === kind);
  render(byId("log-body"), found.length > 0 ? found.map(line) : el("li", { class: "empty" }, "Nothing yet."));
}

function line(event) {
  const at = new Date(event.at_us / 1000);
  const fields = Object.entries(event).filter(([name]) => !COMMON.has(name));
  return el("li", { "data-kind": event.kind, "data-seq": event.seq },
    el("time", { datetime: Number.isNaN(at.getTime()) ? undefined : at.toISOString() }, clock(event.at_us)),
    el("span", { class: `tag tag-${String(event.kind).replace(/[^a-z_]/g, "")}` }, String(event.kind).replace("_", " ")),
    el("span", { class: "what" }, fields.map(([name, value]) => [el("i", {}, ` ${name.replace(/_/g, " ")} `), text(name, value)])));
}

/** A value as it reads best: bytes with their unit, lists and objects spelled out. */
function text(name, value) {
  if (typeof value === "number" && BYTES.test(name)) return bytes(value);
  if (Array.isArray(value)) return value.map((one) => text(name, one)).join("; ");
  if (typeof value !== "object" || value === null) return String(value);
  const { device, ...rest } = value;
  const spelled = Object.entries(rest).map(([key, one]) => `${key.replace(/_/g, " ")} ${text(key, one)}`).join(", ");
  return device === undefined ? spelled : `${device}: ${spelled}`;
}

/** The time of day of a time since 1970; a time since the service's start as minutes and seconds. */
function clock(us) {
  const YEAR_US = 3.2e13;
  const seconds = us / 1e6;
  if (us > YEAR_US) return new Date(us / 1000).toTimeString().slice(0, 8);
  return `${Math.floor(seconds / 60)}:${(seconds % 60).toFixed(3).padStart(6, "0")}`;
}
