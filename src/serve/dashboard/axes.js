// Ticks, and the colours of the scheme that is in force.

/** Round positions between two values, at most `most` of them: 1, 2, 5 × 10ⁿ, or powers of two for bytes. */
export function ticks(from, to, most, binary) {
  const span = to - from;
  if (!(span > 0) || most < 1) return [];
  const step = binary ? 2 ** Math.ceil(Math.log2(span / most)) : decimalStep(span / most);
  const whole = Math.max(step, binary ? 1 : step);
  const found = [];
  for (let at = Math.ceil(from / whole) * whole; at <= to; at += whole) found.push(at);
  return found;
}

function decimalStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= least) ?? 10 * power;
}

/** The colours that a canvas draws with, by name of the custom property without its dashes. */
export function palette(node) {
  const style = getComputedStyle(node);
  const known = new Map();
  return (name) => {
    if (!known.has(name)) known.set(name, style.getPropertyValue(`--${name}`).trim() || "gray");
    return known.get(name);
  };
}

/** Calls when colours or the density of pixels change. */
export function onAppearance(changed) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  matchMedia(`(resolution: ${devicePixelRatio}dppx)`).addEventListener("change", changed);
}
