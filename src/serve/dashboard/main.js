// Asks for everything once, then follows the events and asks again for what they say has changed.

import * as activity from "./activity.js";
import { follow, get, Refused, setToken } from "./api.js";
import * as arena from "./arena.js";
import { byId } from "./dom.js";
import * as layers from "./layers.js";
import * as memory from "./memory.js";
import * as requests from "./requests.js";

/** Changes that come together are asked for once. */
const TOGETHER_MS = 120;
/** Numbers that no event brings are asked for so often. */
const STATS_MS = 2000;

const state = {};

const show = {
  devices: () => layers.drawLinks(state.devices),
  placement: () => {
    memory.draw(state.placement, state["placement/history"], openArena);
    layers.draw(state.placement);
    byId("version").textContent = state.placement ? `plan ${state.placement.version}` : "";
    return arena.choose(state.placement);
  },
  "placement/history": () => memory.draw(state.placement, state["placement/history"], openArena),
  traces: () => requests.offer(state.traces),
  stats: () => {
    activity.note(state.stats);
    activity.drawStats(state.stats);
  },
};

function openArena(model, device) {
  arena.choose(state.placement, { model, device });
  const quiet = matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId("arena").scrollIntoView({ behavior: quiet ? "auto" : "smooth", block: "start" });
  byId("arena-device").focus({ preventScroll: true });
}

// ---- asking

const wanted = new Set();
let timer;

function ask(...paths) {
  paths.forEach((p) => wanted.add(p));
  timer ??= setTimeout(async () => {
    const now = [...wanted];
    wanted.clear();
    await Promise.all(now.map(fetched));
    timer = undefined;
    if (wanted.size > 0) ask();
  }, TOGETHER_MS);
}

async function fetched(path) {
  try {
    state[path] = await get(path);
    await show[path]();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) connection("locked");
    else if (!(error instanceof TypeError) && !(error instanceof Refused)) throw error;
  }
}

const askAll = () => ask(...Object.keys(show));

// ---- hearing

const PLACEMENT = ["placement", "placement/history", "devices"];
const CHANGES = {
  reserve: PLACEMENT, grow: PLACEMENT, bind: PLACEMENT, load: PLACEMENT, unload: PLACEMENT, eviction: PLACEMENT,
  admission: PLACEMENT, failure: [...PLACEMENT, "stats"], copy_path: ["devices"], request: ["traces", "stats"],
};

function heard(event) {
  if (event.kind === "stats") {
    state.stats = { ...state.stats, ...event };
    return show.stats();
  }
  activity.remember(event);
  activity.drawLog();
  return ask(...(CHANGES[event.kind] ?? []));
}

const SAYS = { live: "live", waiting: "reconnecting", locked: "needs a token", connecting: "connecting" };

function connection(now) {
  const node = byId("connection");
  const before = node.dataset.state;
  node.dataset.state = now;
  node.textContent = SAYS[now];
  byId("token-form").hidden = now !== "locked";
  // What happened while nobody listened is not known.
  if (now === "live" && before !== "live") askAll();
}

byId("token-form").addEventListener("submit", (e) => {
  e.preventDefault();
  setToken(byId("token").value);
  location.reload();
});

memory.legend();
arena.setUp();
requests.setUp();
activity.setUp();
activity.drawStats(undefined);
askAll();
setInterval(() => { if (!document.hidden) ask("stats"); }, STATS_MS);
follow(heard, connection);
