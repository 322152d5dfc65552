/** Numbers, sizes and times as text. */

export const NONE = "–";
const PREFIXES = [[1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const UNITS = [[86400, "day"], [3600, "h"], [60, "min"]];

/** Whether something is a finite number. */
export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Return a number with fixed decimals. */
export function fixed(value, decimals = 3) {
  return known(value) ? value.toFixed(decimals).replace("-", "−") : NONE;
}

/** Return a difference with its sign. */
export function signed(value, decimals = 3) {
  if (!known(value)) return NONE;
  const text = fixed(Math.abs(value), decimals);
  return Number(text) === 0 ? text : (value > 0 ? "+" : "−") + text;
}

/** Return a number with three digits, whatever its size. */
export function digits(value) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 10000) return short(value);
  if (size >= 1000) return whole(value);
  if (value === 0) return "0";
  return (size < 0.001 ? value.toExponential(1) : value.toPrecision(3)).replaceAll("-", "−");
}

/** Return a number with at most three digits, without zeros at its end: for axes. */
export function plain(value) {
  if (!known(value)) return "";
  const size = Math.abs(value);
  if (size >= 1000 || (value !== 0 && size < 0.001)) return digits(value);
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

/** Return a whole number with separated thousands. */
export function whole(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US").replace("-", "−") : NONE;
}

/** Return a count with three digits and a prefix. */
export function short(value) {
  if (!known(value)) return NONE;
  const [size, prefix] = PREFIXES.find(([unit]) => Math.abs(value) >= 0.9995 * unit) ?? [1, ""];
  return `${Number((value / size).toPrecision(3))} ${prefix}`.trim().replace("-", "−");
}

/** Return a count in full if it is small, else with a prefix. */
export function size(value) {
  return known(value) && Math.abs(value) < 10000 ? whole(value) : short(value);
}

/** Return a number of operations. */
export function operations(value) {
  return known(value) ? (value < 1000 ? `${whole(value)} FLOP` : `${short(value)}FLOP`) : NONE;
}

/** Return a share as percent. */
export function percent(share) {
  if (!known(share)) return NONE;
  return share > 0 && share < 0.005 ? "<1 %" : `${Math.round(100 * share)} %`;
}

/** Return a count with its noun. */
export function counted(number, noun, many = `${noun}s`) {
  return `${whole(number)} ${number === 1 ? noun : many}`;
}

/** Say how long ago a moment was, given in seconds since 1970. */
export function ago(moment, now = Date.now() / 1000) {
  if (!known(moment)) return NONE;
  const seconds = now - moment;
  if (seconds < 60) return "just now";
  const [unit, name] = UNITS.find(([length]) => seconds >= length);
  const number = Math.floor(seconds / unit);
  return `${whole(number)} ${name}${name === "day" && number > 1 ? "s" : ""} ago`;
}

/** Return the name of an op, stage or blueprint as words. */
export function spoken(name) {
  return String(name).toLowerCase().replaceAll("_", " ");
}
