// Elements from values. Strings become text nodes, never markup: names come from model files.

export const byId = (id) => document.getElementById(id);

const make = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(([k, v]) => node.style.setProperty(k, v));
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(2).filter((c) => c !== undefined && c !== null && c !== false));
  return node;
};

/** An HTML element. `on…` attributes are listeners, `style` is an object of properties. */
export const el = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);

/** An SVG element. */
export const svg = (tag, attributes, ...children) =>
  make(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** A number with its unit as text and as value for whoever reads the page by program. */
export const datum = (value, text, attributes) => el("data", { value, ...attributes }, text);

/** Replaces what is in a container. An element with the `data-key` of the one that had the focus gets it back. */
export function render(container, ...children) {
  const active = document.activeElement;
  const key = container.contains(active) ? active.dataset.key : undefined;
  container.replaceChildren(...children.flat(2).filter(Boolean));
  if (key === undefined) return;
  const again = [...container.querySelectorAll("[data-key]")].find((n) => n.dataset.key === key);
  again?.focus({ preventScroll: true });
}

/** Sets the options of a select and keeps what was chosen where it still exists. Returns the choice. */
export function options(select, entries, prefer) {
  const before = select.value;
  const same = select.options.length === entries.length
    && entries.every(([value, text], i) => select.options[i].value === value && select.options[i].text === text);
  if (!same) select.replaceChildren(...entries.map(([value, text]) => el("option", { value }, text)));
  const wanted = [prefer, before, entries[0]?.[0]].find((v) => entries.some(([value]) => value === v));
  select.value = wanted ?? "";
  select.disabled = entries.length === 0;
  return select.value;
}

/** A term and its description. */
export const fact = (name, ...value) => el("div", {}, el("dt", {}, name), el("dd", {}, ...value));

/** An entry of a legend. */
export const swatch = (kind, text) => el("li", {}, el("span", { class: `swatch kind-${kind}`, "aria-hidden": "true" }), text);

/** What is said where there is nothing to show. */
export const empty = (text) => el("p", { class: "empty" }, text);
