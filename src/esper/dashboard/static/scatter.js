/** Points over a logarithmic axis, with intervals and names that do not hide one another. */

import { el, fill, say, svg } from "./dom.js";
import { plain } from "./format.js";
import { onPrint } from "./print.js";

const HEIGHT = 340;
const EDGE = { left: 54, top: 16, bottom: 42 };
const MOST_RIGHT = 74;
const LINE = 15;
const LETTER = 6.8;
const DOT = 7;
const FARTHEST_ROW = 3;
const HINT_POINTS =
  "Point at an arm to read its figures. Bars: 95 % intervals. Dotted: the frontier, the best score for its cost.";
const painters = new Set();

// A fold that opens for print is laid out at once, but observers of sizes are told too late for the paper.
onPrint((now) => now && painters.forEach((paint) => paint()));

/**
 * Return a picture of points {label, x, y, low, high, own, title}, as {element, update, light, destroy}.
 *
 * With `isBetterBelow`, the y axis is turned round: better is always further up. `light(label)` brings a point out.
 */
export function scatter({ title, xName, format }) {
  const box = el("div.scatter");
  const said = el("p.said", { "aria-hidden": "true" }, HINT_POINTS);
  const element = el("figure.chart", {}, el("div.chart-head", {}, el("h3", {}, title)), box, said);
  let data = null;
  let width = 0;
  const light = (label) => {
    const point = data?.points.find((one) => one.label === label);
    say(said, point?.title ?? HINT_POINTS);
    for (const part of box.querySelectorAll("[data-label]")) part.classList.toggle("lit", part.dataset.label === label);
  };
  const paint = () => {
    const now = box.clientWidth;
    if (!data || now < 40 || now === width) return;
    width = now;
    fill(box, drawn(data, { width, xName, format, title }));
  };
  box.addEventListener("pointerover", (event) => light(event.target.closest("[data-label]")?.dataset.label));
  const observer = new ResizeObserver(paint);
  observer.observe(box);
  painters.add(paint);
  return {
    element, light,
    update(next) {
      if (JSON.stringify(next) !== JSON.stringify(data)) width = 0;
      data = next;
      paint();
    },
    destroy() {
      observer.disconnect();
      painters.delete(paint);
    },
  };
}

function drawn({ points, yName, isBetterBelow }, { width, xName, format, title }) {
  if (!points.length) return el("p.quiet", {}, "No arm has known figures.");
  const right = width - Math.min(MOST_RIGHT, 0.17 * width);
  const x = logScale(points.map((point) => point.x), EDGE.left + 12, right);
  const y = scaleY(points, isBetterBelow);
  const said = points.map((point) => `${point.label}: ${yName} ${plain(point.y)}, ${xName} ${format(point.x)}`);
  const options = { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img" };
  return svg("svg", { ...options, "aria-label": `${title}. ${said.join("; ")}` },
    y.ticks.map((tick) => tickY(y(tick), width, plain(tick))),
    x.ticks(width).map((tick) => tickX(x(tick), format(tick))),
    svg("text.axis-name", { x: width - 4, y: HEIGHT - 4, "text-anchor": "end" }, `${xName} (log scale)`),
    frontier(points, x, y, isBetterBelow), points.map((point) => pointMark(point, x, y)), names(points, x, y, width));
}

function tickY(y, width, text) {
  const line = svg("line", { x1: EDGE.left, x2: width - 4, y1: y, y2: y });
  return svg("g.tick", {}, line, svg("text", { x: EDGE.left - 8, y: y + 4, "text-anchor": "end" }, text));
}

function tickX(x, text) {
  return svg("text.tick", { x, y: HEIGHT - EDGE.bottom + 20, "text-anchor": "middle" }, text);
}

function logScale(values, from, to) {
  const [low, high] = [Math.log10(Math.min(...values)), Math.log10(Math.max(...values))];
  const room = high - low < 0.05 ? 0.3 : 0.04 * (high - low);
  const [least, most] = [low - room, high + room];
  const scale = (value) => from + ((Math.log10(value) - least) / (most - least)) * (to - from);
  scale.ticks = (width) => {
    const steps = most - least < 1.3 ? [1, 2, 3, 5] : most - least < 2.5 ? [1, 3] : [1];
    const all = [];
    for (let power = Math.floor(least); power <= most; power++) for (const step of steps) all.push(step * 10 ** power);
    const inside = all.filter((tick) => Math.log10(tick) >= least && Math.log10(tick) <= most);
    const every = Math.ceil(inside.length / Math.max(2, Math.floor(width / 90)));
    return inside.length ? inside.filter((_, i) => i % every === 0) : values.slice(0, 1);
  };
  return scale;
}

function scaleY(points, isBetterBelow) {
  const all = points.flatMap(({ y, low, high }) => [y, low ?? y, high ?? y]);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const room = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
  const [least, most] = [low - room, high + room];
  const share = (value) => (value - least) / (most - least);
  const inside = HEIGHT - EDGE.top - EDGE.bottom;
  const scale = (value) => EDGE.top + (isBetterBelow ? share(value) : 1 - share(value)) * inside;
  const rough = (most - least) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const first = Math.ceil(least / step);
  const count = Math.floor(most / step) - first + 1;
  scale.ticks = Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(10)));
  return scale;
}

/** The line through the points that no other point beats in both directions. */
function frontier(points, x, y, isBetterBelow) {
  const isBetter = (a, b) => (isBetterBelow ? a < b : a > b);
  const sorted = [...points].sort((a, b) => a.x - b.x || (isBetter(a.y, b.y) ? -1 : 1));
  const best = [];
  for (const point of sorted) if (!best.length || isBetter(point.y, best.at(-1).y)) best.push(point);
  if (best.length < 2) return null;
  const step = (point, i) => (i ? `H${x(point.x)}V${y(point.y)}` : `M${x(point.x)},${y(point.y)}`);
  const title = svg("title", {}, "The frontier: no cheaper arm scores better");
  return svg("path.frontier", { d: best.map(step).join("") }, title);
}

function pointMark(point, x, y) {
  const { label, low, high, own, title } = point;
  const group = svg(own ? "g.point.own" : "g.point", { "data-label": label }, svg("title", {}, title));
  const [across, up] = [x(point.x), y(point.y)];
  if (low !== null && high !== null) group.append(svg("line", { x1: across, x2: across, y1: y(low), y2: y(high) }));
  group.append(svg("circle", { cx: across, cy: up, r: own ? DOT : 4.5 }));
  return group;
}

/** Names beside their points, where there is room; the others show when they are pointed at, and in the table. */
function names(points, x, y, width) {
  const taken = points.map((point) => area(x(point.x) - DOT, y(point.y), 2 * DOT, 2 * DOT));
  const whiskers = points.filter(({ low, high }) => low !== null && high !== null).map(({ x: at, low, high }) => {
    return area(x(at) - 2, (y(low) + y(high)) / 2, 4, Math.abs(y(low) - y(high)));
  });
  const sorted = [...points].sort((a, b) => Number(b.own) - Number(a.own) || a.x - b.x);
  return sorted.map((point) => {
    const length = point.label.length * LETTER * (point.own ? 1.08 : 1);
    const [px, py] = [x(point.x), y(point.y)];
    const possible = placesBeside(px, py, length).filter((place) => isFree(place, taken, width));
    const wanted = possible.find((place) => isFree(place, whiskers, width)) ?? possible[0];
    if (!wanted) return null;
    taken.push(wanted);
    const text = svg(point.own ? "text.name.own" : "text.name", { x: wanted.left, y: wanted.middle + 4 }, point.label);
    text.dataset.label = point.label;
    return text;
  });
}

function area(left, middle, width, height = LINE - 2) {
  return { left, right: left + width, top: middle - height / 2, bottom: middle + height / 2, middle };
}

function placesBeside(x, y, length) {
  const sides = [0, -0.6, 0.6, -1, 1, -1.4, 1.4].filter((row) => Math.abs(row) < FARTHEST_ROW);
  const starts = [x + DOT + 4, x - DOT - 4 - length];
  const beside = sides.flatMap((row) => starts.map((left) => area(left, y + row * LINE, length)));
  return [...beside, area(x - length / 2, y - LINE, length), area(x - length / 2, y + LINE, length)];
}

function isFree(place, taken, width) {
  const { left, right, top, bottom } = place;
  const isInside = left > EDGE.left && right < width - 2 && top > 2 && bottom < HEIGHT - EDGE.bottom;
  const isApart = (other) => right < other.left || other.right < left || bottom < other.top || other.bottom < top;
  return isInside && taken.every(isApart);
}
