/** Curves over a common x axis, drawn by uPlot: with reference lines, a band, marks, a readout and zoom. */

import { el, fill, mark, say } from "./dom.js";
import { onPrint } from "./print.js";
import { color, onColors, thin } from "./theme.js";
import { digits, plain, short } from "./format.js";

const LEFT = 52;
const LETTER_WIDTH = 6.9;
const MOST_LETTERS = 24;
const NARROW = 620;
const PRINTED = 660;
const MOST_PLACES = 60;
const LEAST_ROOM = 15;
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6];
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const alive = new Set();
let isPrinting = false;

onColors(() => alive.forEach((chart) => chart.redraw()));
onPrint((now) => {
  isPrinting = now;
  alive.forEach((chart) => chart.resize());
});

/** How many charts exist; views that are left must leave none. */
export function chartCount() {
  return alive.size;
}

/** Return a group of charts whose cursors and zoom move together. */
export function chartGroup() {
  return { charts: new Set(), range: null, busy: false };
}

/**
 * Return a chart as {element, update, destroy}.
 *
 * `options`: title, unit (of x), isCompute (of x), height, group, log, stepped, stacked, format, formatAxis (of y),
 * formatX, range (of y), fromZero, firstX and lastX.
 * `update(data)` takes x, series [{label, values, color, dash, width, isFaint, fill, points, letter, about}], lines
 * [{label, value}], low and high (a band), marks [{x}] on the axis, and rules [{x, label, isBirth}] across.
 */
export function chart(options) {
  const made = new Chart(options);
  alive.add(made);
  return made;
}

class Chart {
  constructor(options) {
    const format = options.format ?? digits;
    const formatAxis = options.format ?? plain;
    this.options = { unit: "update", height: 240, group: chartGroup(), formatX: plain, formatAxis, ...options, format };
    this.plot = null;
    this.data = null;
    this.readout = el("div.readout");
    this.box = el("div.plot", { tabindex: "0", role: "group" });
    this.back = el("button.quiet.unzoom", { type: "button", hidden: true, onclick: () => this.zoom(null) }, "Show all");
    const heading = options.title ? el("h3", {}, options.title) : null;
    const head = el("div.chart-head", {}, heading, options.stacked ? null : this.readout, this.back);
    this.element = el("figure.chart", {}, head, this.box, options.stacked ? this.readout : null);
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.box);
    this.options.group.charts.add(this);
  }

  /** Show new data; the zoom and the cursor stay. */
  update(data) {
    const shape = JSON.stringify([Boolean(data.low), data.series.map((one) => [one.label, one.color, one.dash])]);
    const isNew = shape !== this.shape;
    this.data = data;
    this.shape = shape;
    this.columns = this.stack(data);
    if (isNew) this.rebuild();
    else if (this.plot) this.plot.setData(this.columns, false);
    if (this.plot && !isNew) this.scale();
    this.read(null);
    mark(this.box, "aria-label", this.described());
  }

  destroy() {
    this.observer.disconnect();
    this.plot?.destroy();
    this.plot = null;
    this.options.group.charts.delete(this);
    alive.delete(this);
  }

  redraw() {
    this.plot?.redraw(false, true);
    this.read(null);
  }

  /** Columns as uPlot takes them; stacked series become sums, the largest first, so that each is painted over it. */
  stack({ x, series }) {
    if (!this.options.stacked) return [x, ...series.map((one) => one.values), ...this.band()];
    const sums = [];
    for (const one of series) {
      const below = sums.at(-1);
      sums.push(one.values.map((value, i) => (value === null ? null : value + (below?.[i] ?? 0))));
    }
    return [x, ...sums.reverse()];
  }

  band() {
    return this.data.low ? [this.data.high, this.data.low] : [];
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    if (this.width() > 40 && this.data) {
      this.plot = new uPlot(this.settings(), this.columns, this.box);
      this.scale();
    }
  }

  width() {
    return isPrinting ? Math.min(this.box.clientWidth, PRINTED) : this.box.clientWidth;
  }

  resize() {
    const width = this.width();
    if (!this.data) return;
    if (!this.plot) this.rebuild();
    else if (width > 40 && width !== this.plot.width) {
      this.plot.setSize({ width, height: this.options.height });
    }
  }

  settings() {
    const { options } = this;
    return {
      width: this.width(),
      height: options.height,
      padding: [10, (plot) => (this.hasRoom(plot) ? this.room() : options.isCompute ? 24 : 14), 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false },
        points: { size: 7, show: !options.stacked },
        bind: { dblclick: () => () => this.zoom(null) },
      },
      scales: {
        x: { time: false, range: (_, low, high) => this.rangeX(low, high) },
        y: { distr: options.log ? 3 : 1, range: (_, low, high) => this.rangeY(low, high) },
      },
      axes: [this.axis({}), this.axis({ isY: true })],
      series: [{}, ...this.drawn()],
      bands: this.data.low ? [this.bandStyle()] : undefined,
      hooks: {
        draw: [(plot) => this.annotate(plot)],
        setCursor: [(plot) => this.moved(plot)],
        setSelect: [(plot) => this.selected(plot)],
      },
    };
  }

  axis({ isY = false }) {
    const { formatAxis } = this.options;
    const quiet = () => color("quiet");
    const grid = { stroke: () => color("line"), width: 1 };
    const base = { stroke: quiet, font: FONT, grid, ticks: { show: false }, border: { show: false } };
    const valuesY = (_, ticks) => ticks.map((y) => (y === null ? "" : formatAxis(y)));
    if (isY) return { ...base, size: LEFT, gap: 6, values: valuesY };
    return {
      ...base, size: 34, gap: 6, space: 70, grid: { show: false },
      border: { show: true, stroke: () => color("line"), width: 1 },
      incrs: this.options.isCompute ? undefined : WHOLE,
      values: (_, ticks) => ticks.map((tick) => (this.options.isCompute ? short(tick) : plain(tick))),
    };
  }

  hasRoom(plot) {
    return Boolean(this.data.lines?.length) && (plot?.width ?? this.width()) >= NARROW;
  }

  /** Pixels to the right of the plot for the names of lines. */
  room() {
    const names = this.data.lines.map((line) => lineText(line, this.options.format));
    return 12 + LETTER_WIDTH * Math.max(...names.map((name) => name.length));
  }

  drawn() {
    const { series } = this.data;
    const isFew = this.data.x.length < 3 && !this.options.stacked;
    const style = (one) => ({
      stroke: () => (this.options.stacked ? color("surface") : thin(one.color, one.isFaint ? 0.5 : 1)),
      width: this.options.stacked ? 1 : one.width ?? 2,
      dash: one.dash,
      fill: this.options.stacked ? () => color(one.color) : one.fill ? () => thin(one.color, 0.14) : undefined,
      spanGaps: !this.options.stacked,
      points: { show: one.points ?? isFew, size: 6, fill: () => color(one.color) },
      paths: this.options.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    });
    const styles = series.map(style);
    const edge = { stroke: () => "transparent", width: 0, points: { show: false }, spanGaps: true };
    return [...(this.options.stacked ? styles.reverse() : styles), ...this.band().map(() => edge)];
  }

  bandStyle() {
    const first = this.data.series.length + 1;
    return { series: [first, first + 1], fill: () => thin(this.data.series[0].color, 0.16) };
  }

  rangeX(low, high) {
    const { firstX, lastX } = this.options;
    if (this.options.group.range) return this.options.group.range;
    const [from, to] = [firstX ?? low, lastX?.() ?? high];
    return from === null || to === null ? [0, 1] : from === to ? [from - 0.5, to + 0.5] : [from, to];
  }

  rangeY(low, high) {
    if (this.options.range) return this.options.range;
    const values = [low, high, ...(this.data.lines ?? []).map((line) => line.value)].filter(Number.isFinite);
    if (!values.length) return [0, 1];
    const [least, most] = [Math.min(...values), Math.max(...values)];
    if (this.options.log) return [least * 0.9, most * 1.1];
    const room = 0.08 * (most - least) || Math.abs(most) * 0.1 || 1;
    return [this.options.fromZero ? 0 : least - room, most + room];
  }

  /** Set the range of x: the zoom of the group, or everything. */
  scale() {
    const x = this.data.x;
    const range = this.options.group.range ?? [x[0] ?? 0, x.at(-1) ?? 1];
    this.plot.batch(() => {
      this.plot.setScale("x", { min: range[0], max: range[1] });
    });
    this.back.hidden = !this.options.group.range;
  }

  /** Show a range of x in all charts of the group; null for everything. */
  zoom(range) {
    const hadFocus = this.back === document.activeElement;
    this.options.group.range = range;
    for (const other of this.options.group.charts) if (other.plot) other.scale();
    if (hadFocus && !range) this.box.focus();
  }

  selected(plot) {
    const { left, width } = plot.select;
    if (width < 6) return;
    const range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoom(range);
  }

  moved(plot) {
    const { group } = this.options;
    const index = plot.cursor.left >= 0 ? plot.cursor.idx : null;
    this.read(index ?? null);
    if (group.busy) return;
    group.busy = true;
    for (const other of group.charts) if (other !== this && other.plot) other.point(index ?? null);
    group.busy = false;
  }

  /** Put the cursor on a point; null removes it. */
  point(index) {
    const x = index === null ? null : this.data.x[index];
    const left = x === null || x === undefined ? -10 : this.plot.valToPos(x, "x");
    this.plot.setCursor({ left, top: left < 0 ? -10 : 10 });
  }

  key(event) {
    const last = (this.data?.x.length ?? 0) - 1;
    if (!this.plot || last < 0 || event.target !== this.box) return;
    const now = this.plot.cursor.idx ?? last;
    const at = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (at !== undefined) this.point(Math.max(0, Math.min(last, at)));
    else if (event.key === "+" || event.key === "-") this.zoomAround(this.data.x[now], event.key === "+" ? 0.5 : 2);
    else if (event.key === "0" || event.key === "Escape") this.zoom(null);
    else return;
    mark(this.readout, "aria-live", "polite");
    event.preventDefault();
  }

  zoomAround(x, factor) {
    const { min, max } = this.plot.scales.x;
    const half = (factor * (max - min)) / 2;
    const all = [this.data.x[0], this.data.x.at(-1)];
    const range = [Math.max(all[0], x - half), Math.min(all[1], x + half)];
    if (range[1] - range[0] < 1) return;
    this.zoom(range[0] <= all[0] && range[1] >= all[1] ? null : range);
  }

  /** Write the values under the cursor, or the last ones, beside the names of the series. */
  read(index) {
    if (!this.data) return;
    const { series, x } = this.data;
    if (this.readout.dataset.shape !== this.shape) this.label();
    const at = index ?? x.length - 1;
    const { unit, format, formatX } = this.options;
    say(this.readout.firstElementChild, x.length ? `${unit} ${formatX(x[at])}` : "");
    series.forEach((one, i) => {
      const value = index === null ? one.values.findLast((y) => y !== null) : one.values[at];
      say(this.readout.children[i + 1].lastElementChild, format(value ?? null));
    });
  }

  label() {
    this.readout.dataset.shape = this.shape;
    const kind = this.options.stacked ? ".area" : "";
    const items = this.data.series.map((one) => {
      const swatch = el(`span.swatch${kind}`, { "aria-hidden": "true", hidden: !one.label }, one.letter ?? "");
      swatch.style.setProperty("--c", `var(--${one.color})`);
      if (one.letter) swatch.style.color = `var(--on-${one.color}, var(--surface))`;
      if (one.dash?.length) swatch.classList.add("dashed");
      if (one.isFaint) swatch.classList.add("faint");
      return el("span.item", {}, swatch, el("span", { title: one.about }, one.label), " ", el("b"));
    });
    fill(this.readout, el("span.at"), ...items);
  }

  described() {
    const { series, lines = [] } = this.data;
    const said = series.slice(0, 8).map((one) => {
      const found = one.values.filter((y) => y !== null);
      if (!found.length) return `${one.label}: nothing yet`;
      return `${one.label}: from ${this.options.format(found[0])} to ${this.options.format(found.at(-1))}`;
    });
    const about = lines.map((line) => `${line.label} ${this.options.format(line.value)}`);
    const help = "Arrow keys move the cursor, plus and minus zoom.";
    return [this.options.title ?? "Chart", ...said, ...about, help].join(". ");
  }

  /** Draw what uPlot does not know: reference lines, marks, and names inside areas. */
  annotate(plot) {
    const { ctx } = plot;
    ctx.save();
    ctx.font = FONT.replace("12px", `${12 * uPlot.pxRatio}px`);
    ctx.lineWidth = uPlot.pxRatio;
    if (this.options.stacked) nameAreas(plot, this.data);
    drawLines(plot, this.data.lines ?? [], this.hasRoom(plot), this.options.format);
    drawMarks(plot, this.data.marks ?? []);
    drawRules(plot, this.data.rules ?? []);
    ctx.restore();
  }
}

function drawLines(plot, lines, hasRoom, format) {
  const { ctx, bbox } = plot;
  const ratio = uPlot.pxRatio;
  const right = bbox.left + bbox.width;
  let above = bbox.top + bbox.height + 14 * ratio;
  for (const line of [...lines].sort((a, b) => a.value - b.value)) {
    const y = plot.valToPos(line.value, "y", true);
    if (y < bbox.top - 1 || y > bbox.top + bbox.height + 1) continue;
    ctx.strokeStyle = color("quiet");
    ctx.setLineDash([2 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(right, y);
    ctx.stroke();
    ctx.setLineDash([]);
    above = Math.min(y, above - 14 * ratio);
    ctx.textAlign = hasRoom ? "left" : "right";
    ctx.textBaseline = hasRoom ? "middle" : "bottom";
    const [x, lift] = hasRoom ? [right + 6 * ratio, 0] : [right - 2 * ratio, 2 * ratio];
    halo(ctx, lineText(line, format), x, above - lift);
  }
}

function lineText({ label, value }, format) {
  const name = label.length > MOST_LETTERS ? `${label.slice(0, MOST_LETTERS - 1)}…` : label;
  return `${name} ${format(value)}`;
}

function halo(ctx, text, x, y) {
  ctx.strokeStyle = color("surface");
  ctx.lineWidth = 4 * uPlot.pxRatio;
  ctx.lineJoin = "round";
  ctx.strokeText(text, x, y);
  ctx.lineWidth = uPlot.pxRatio;
  ctx.fillStyle = color("quiet");
  ctx.fillText(text, x, y);
}

function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  const size = 5 * uPlot.pxRatio;
  const bottom = bbox.top + bbox.height;
  ctx.fillStyle = color("warn");
  for (const { x } of marks) {
    const at = plot.valToPos(x, "x", true);
    if (at < bbox.left - 1 || at > bbox.left + bbox.width + 1) continue;
    ctx.beginPath();
    ctx.moveTo(at - size, bottom);
    ctx.lineTo(at + size, bottom);
    ctx.lineTo(at, bottom - 1.8 * size);
    ctx.fill();
  }
}

/** Write the name of each area where it is highest over the width of the name, if it fits there. */
function nameAreas(plot, { x, series }) {
  const { ctx } = plot;
  const across = x.map((value) => plot.valToPos(value, "x", true));
  const every = Math.ceil(x.length / MOST_PLACES);
  ctx.textBaseline = "middle";
  ctx.textAlign = "center";
  series.forEach((one, index) => {
    const half = ctx.measureText(one.label).width / 2 + 4 * uPlot.pxRatio;
    let best = null;
    for (let i = 0; i < x.length; i += every) {
      const room = roomAt(plot, across, series, index, [across[i] - half, across[i] + half]);
      if (room && (!best || room.height > best.height)) best = { ...room, at: across[i] };
    }
    if (!best || best.height < LEAST_ROOM * uPlot.pxRatio) return;
    ctx.fillStyle = color(`on-${one.color}`);
    ctx.fillText(one.label, best.at, best.middle);
  });
}

/** The part of an area that is free from left to right, as {height, middle} in pixels; null beyond the plot. */
function roomAt(plot, across, series, index, [left, right]) {
  const { bbox } = plot;
  if (left < bbox.left || right > bbox.left + bbox.width) return null;
  let [bottom, top] = [-Infinity, Infinity];
  for (let i = 0; i < across.length; i++) {
    if ((across[i + 1] ?? Infinity) < left || (across[i - 1] ?? -Infinity) > right) continue;
    const below = series.slice(0, index).reduce((sum, other) => sum + (other.values[i] ?? 0), 0);
    bottom = Math.max(bottom, below);
    top = Math.min(top, below + (series[index].values[i] ?? 0));
  }
  if (top <= bottom) return null;
  const [high, low] = [plot.valToPos(top, "y", true), plot.valToPos(bottom, "y", true)];
  return { height: low - high, middle: (low + high) / 2 };
}

/** Draw lines across, with a label where there is room. */
function drawRules(plot, rules) {
  const { ctx, bbox } = plot;
  const ratio = uPlot.pxRatio;
  let free = -Infinity;
  ctx.textAlign = "left";
  ctx.textBaseline = "top";
  for (const { x, label, isBirth } of rules) {
    const at = plot.valToPos(x, "x", true);
    if (at < bbox.left - 1 || at > bbox.left + bbox.width + 1) continue;
    ctx.strokeStyle = color(isBirth ? "accent" : "warn");
    ctx.setLineDash(isBirth ? [] : [4 * ratio, 3 * ratio]);
    ctx.globalAlpha = 0.6;
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
    const width = ctx.measureText(label).width;
    if (!label || at < free || at + width > bbox.left + bbox.width) continue;
    halo(ctx, label, at + 4 * ratio, bbox.top + 2 * ratio);
    free = at + width + 10 * ratio;
  }
}
