// Asking the service, and listening to it.

const KEY = "loadmaster-token";

/** The token of this tab; `#token=…` in the address sets it and is then taken out of the address. */
function token() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(KEY);
}

export const setToken = (value) => sessionStorage.setItem(KEY, value);

const headers = (more) => {
  const secret = token();
  return secret ? { ...more, Authorization: `Bearer ${secret}` } : { ...more };
};

/** An answer that is no success. */
export class Refused extends Error {
  constructor(status, path) {
    super(`${path}: ${status}`);
    this.status = status;
  }
}

/** What a path of the service says. Throws `Refused`, and what `fetch` throws. */
export async function get(path, signal) {
  const answer = await fetch(`/api/v1/${path}`, { headers: headers({ Accept: "application/json" }), signal });
  if (!answer.ok) throw new Refused(answer.status, path);
  return answer.json();
}

export const arenaPath = (model, device, graph) =>
  `models/${encodeURIComponent(model)}/arena?device=${encodeURIComponent(device)}&graph=${encodeURIComponent(graph)}`;

export const tracePath = (id) => `traces/${encodeURIComponent(id)}`;

/** Splits a text of server-sent events into data and what is not complete yet. */
export function parse(text) {
  const blocks = text.split(/\r\n\r\n|\n\n|\r\r/);
  const rest = blocks.pop();
  const dataOf = (block) => block.split(/\r\n|\n|\r/).filter((l) => l.startsWith("data:"))
    .map((l) => l.slice(5).replace(/^ /, "")).join("\n");
  return { data: blocks.map(dataOf).filter((d) => d !== ""), rest };
}

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 10_000;

/**
 * Follows the events of the service until the page goes: `fetch` instead of `EventSource`, which cannot send a token.
 * Comes back after what it has seen. `said` gets each event, `state` one of `live`, `waiting`, `locked`.
 */
export async function follow(said, state) {
  let [last, pause] = [undefined, FIRST_PAUSE];
  for (;;) {
    try {
      const seen = last === undefined ? {} : { "Last-Event-ID": String(last) };
      const answer = await fetch("/api/v1/events", { headers: headers({ Accept: "text/event-stream", ...seen }) });
      if (!answer.ok) throw new Refused(answer.status, "events");
      state("live");
      pause = FIRST_PAUSE;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const { data, rest } = parse(text + value);
        text = rest;
        for (const one of data) {
          const event = JSON.parse(one);
          last = event.seq ?? last;
          said(event);
        }
      }
      state("waiting");
    } catch (error) {
      state(error instanceof Refused && error.status === 401 ? "locked" : "waiting");
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, LONGEST_PAUSE);
  }
}
