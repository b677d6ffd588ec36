// Numbers as text. Bytes have binary prefixes; an absent number is a dash.

const PREFIXES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const NONE = "–";
const known = (n) => typeof n === "number" && Number.isFinite(n);

/** Three significant digits where there are decimals. */
function short(n) {
  if (n === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(n))));
  return String(Number(n.toFixed(Math.min(digits, 2))));
}

/** `1.50 GiB`, as the command prints it. */
export function bytes(n) {
  if (!known(n)) return NONE;
  let [value, at] = [n, 0];
  while (Math.abs(value) >= 1024 && at < PREFIXES.length - 1) [value, at] = [value / 1024, at + 1];
  return `${at === 0 ? Math.round(value) : value.toFixed(2)} ${PREFIXES[at]}`;
}

/** `1.5 GiB`: for axes, where the value is round. */
export const roundBytes = (n) => bytes(n).replace(/\.0+ /, " ");

/** `1.50 GiB (1 610 612 736 B)`. */
export const exactBytes = (n) => (known(n) && n >= 1024 ? `${bytes(n)} (${count(n)} B)` : bytes(n));

/** Groups of three, by narrow spaces. */
export const count = (n) => (known(n) ? String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, "\u202f") : NONE);

/** Microseconds as the unit that reads best. */
export function time(us) {
  if (!known(us)) return NONE;
  if (Math.abs(us) < 1000) return `${short(us)} µs`;
  return Math.abs(us) < 1e6 ? `${short(us / 1000)} ms` : `${short(us / 1e6)} s`;
}

/** A share of one. */
export const percent = (share) => (known(share) ? `${short(share * 100)} %` : NONE);

/** A rate. */
export const rate = (n) => (known(n) ? short(n) : NONE);

/** Bytes a second. */
export const bandwidth = (n) => (known(n) ? `${bytes(n)}/s` : typeof n === "string" ? n : NONE);
