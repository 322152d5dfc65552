/** A fleet as a canvas of tiles: one tile per host, one cell per slot. */

import { el } from "./dom.js";
import { color, onColors, thin } from "./theme.js";
import { EMPTY } from "./series.js";
import { counted } from "./format.js";

const SIZES = [46, 38, 34, 30, 26, 22, 19, 16, 13, 11, 9, 7];
const LETTERS_FROM = 11;
const NUMBERS_FROM = 16;
const IN_A_ROW = 6;

/**
 * The picture of one fleet: {element, draw, destroy}.
 *
 * `draw(part, range, height)` shows the fleet's part of a frame; `point(host)` is called with the host under the
 * pointer or keyboard (null for none), and `open(host)` when one is chosen.
 */
export class Tiles {
  constructor({ label, hosts, slots }, point, open) {
    Object.assign(this, { hosts, slots: slots.length, point, open, shown: null, focus: null, plan: null });
    const about = `${label}: ${counted(hosts, "host")}. Arrow keys move between hosts, Enter opens one.`;
    this.canvas = el("canvas", { tabindex: "0", role: "application", "aria-label": about });
    const heading = el("h2", {}, label, " ", el("small", {}, counted(hosts, "host")));
    this.element = el("div.fleet", {}, heading, this.canvas);
    this.sprites = new Map();
    this.listen();
    this.observer = new ResizeObserver(() => this.paint());
    this.observer.observe(this.element);
    this.stop = onColors(() => {
      this.sprites.clear();
      this.paint();
    });
  }

  listen() {
    const { canvas } = this;
    const isMouse = (event) => event.pointerType === "mouse";
    canvas.addEventListener("pointermove", (event) => isMouse(event) && this.look(this.under(event)));
    canvas.addEventListener("pointerleave", (event) => {
      if (isMouse(event) && document.activeElement !== canvas) this.look(null);
    });
    canvas.addEventListener("click", (event) => {
      const host = this.under(event);
      if (host !== null && event.pointerType !== "touch") this.open(host);
      else this.look(host);
    });
    canvas.addEventListener("focus", () => this.look(this.focus ?? 0));
    canvas.addEventListener("blur", () => this.look(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const { columns } = this.plan ?? { columns: 1 };
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (step) this.look(Math.max(0, Math.min(this.hosts - 1, (this.focus ?? 0) + step)));
    else if (event.key === "Enter" && this.focus !== null) this.open(this.focus);
    else return;
    event.preventDefault();
  }

  under(event) {
    return hostAt(this.plan, this.hosts, event.offsetX, event.offsetY);
  }

  /** Bring out a host; null for none. */
  look(host) {
    if (host === this.focus) return;
    this.focus = host;
    this.paint();
    this.point(host);
  }

  draw(part, range, height) {
    this.shown = { part, range, height };
    this.paint();
  }

  paint() {
    if (!this.shown || !this.element.clientWidth) return;
    const ratio = devicePixelRatio || 1;
    this.fit(layout(this.element.clientWidth, this.shown.height, this.hosts, this.slots), ratio);
    const ctx = this.canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, this.plan.width, this.plan.height);
    paintTiles(ctx, this.plan, this.shown, { hosts: this.hosts, slots: this.slots, sprites: this.sprites, ratio });
    if (this.focus !== null) outline(ctx, this.plan, this.focus);
  }

  /** Give the canvas the size of a plan. */
  fit(plan, ratio) {
    const { canvas } = this;
    const [width, height] = [Math.round(plan.width * ratio), Math.round(plan.height * ratio)];
    if (this.plan?.key === plan.key && canvas.width === width && canvas.height === height) return;
    this.plan = plan;
    this.sprites.clear();
    Object.assign(canvas, { width, height });
    canvas.style.height = `${plan.height}px`;
  }

  destroy() {
    this.observer.disconnect();
    this.stop();
    this.sprites.clear();
    this.canvas.width = 0;
  }
}

/** Choose the largest cells with which all tiles fit into a height. */
function layout(width, height, hosts, slots) {
  const perRow = slots <= IN_A_ROW ? slots : Math.ceil(slots / Math.ceil(slots / IN_A_ROW));
  const rows = Math.ceil(slots / perRow);
  for (const cell of SIZES) {
    const gap = cell >= LETTERS_FROM ? 2 : 1;
    const pad = cell >= NUMBERS_FROM ? 6 : cell >= LETTERS_FROM ? 4 : 3;
    const text = cell >= NUMBERS_FROM ? 17 : 0;
    const least = text ? 58 : 0;
    const tileWidth = Math.max(least, perRow * (cell + gap) - gap + 2 * pad);
    const tileHeight = rows * (cell + gap) - gap + 2 * pad + text;
    const space = cell >= NUMBERS_FROM ? 8 : cell >= LETTERS_FROM ? 5 : 3;
    const columns = Math.max(1, Math.floor((width + space) / (tileWidth + space)));
    const full = Math.ceil(hosts / columns) * (tileHeight + space);
    if (full > height && cell !== SIZES.at(-1)) continue;
    const inset = (tileWidth - (perRow * (cell + gap) - gap)) / 2;
    const key = `${width} ${cell} ${slots}`;
    return { key, width, height: full, cell, gap, pad, inset, text, perRow, columns, space, tileWidth, tileHeight };
  }
  return null;
}

function corner(plan, host) {
  const { columns, tileWidth, tileHeight, space } = plan;
  return [(host % columns) * (tileWidth + space), Math.floor(host / columns) * (tileHeight + space)];
}

function hostAt(plan, hosts, x, y) {
  if (!plan) return null;
  const column = Math.floor(x / (plan.tileWidth + plan.space));
  const host = Math.floor(y / (plan.tileHeight + plan.space)) * plan.columns + column;
  return column < plan.columns && x >= 0 && y >= 0 && host < hosts ? host : null;
}

function paintTiles(ctx, plan, { part, range }, { hosts, slots, sprites, ratio }) {
  const [low, high] = range;
  const born = new Set(part.born);
  const tints = Array.from({ length: 9 }, (_, i) => thin("score", 0.06 + 0.055 * i));
  ctx.font = "600 11px system-ui, -apple-system, sans-serif";
  ctx.textBaseline = "alphabetic";
  for (let host = 0; host < hosts; host++) {
    const [x, y] = corner(plan, host);
    const score = part.scores[host];
    const share = score === null ? 0 : Math.max(0, Math.min(1, (score - low) / (high - low || 1)));
    ctx.fillStyle = tints[Math.round(8 * share)];
    ctx.beginPath();
    ctx.roundRect(x, y, plan.tileWidth, plan.tileHeight, plan.cell >= LETTERS_FROM ? 5 : 2);
    ctx.fill();
    for (let slot = 0; slot < slots; slot++) {
      const at = 2 * (host * slots + slot);
      const code = part.cells.slice(at, at + 2);
      if (!sprites.has(code)) sprites.set(code, sprite(code, plan.cell, ratio));
      const cx = x + plan.inset + (slot % plan.perRow) * (plan.cell + plan.gap);
      const cy = y + plan.pad + Math.floor(slot / plan.perRow) * (plan.cell + plan.gap);
      ctx.drawImage(sprites.get(code), cx, cy, plan.cell, plan.cell);
    }
    if (plan.text) caption(ctx, plan, x, y, score, part.ops.charAt(host), born.has(host));
  }
}

/** Write the score below the cells, and what the host chooses: a letter, or a star where a life begins. */
function caption(ctx, plan, x, y, score, op, isBorn) {
  const bottom = y + plan.tileHeight - 6;
  ctx.fillStyle = color("ink");
  ctx.textAlign = "left";
  ctx.fillText(score === null ? "–" : score.toFixed(2).replace("-", "−"), x + 6, bottom);
  ctx.textAlign = "right";
  if (op !== "W") ctx.fillText(op, x + plan.tileWidth - 6, bottom);
  else if (isBorn) {
    ctx.fillStyle = color("quiet");
    ctx.fillText("new", x + plan.tileWidth - 6, bottom);
  }
}

/** Draw a cell once; the same cell is then copied wherever it occurs. */
function sprite(code, side, ratio) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = Math.max(1, Math.round(side * ratio));
  const ctx = canvas.getContext("2d");
  ctx.scale(canvas.width / side, canvas.width / side);
  const letter = code.charAt(0).toUpperCase();
  const isTwin = code.charAt(0) !== letter;
  const radius = side >= LETTERS_FROM ? 3 : 1;
  const edge = () => {
    ctx.beginPath();
    ctx.roundRect(0.5, 0.5, side - 1, side - 1, radius);
  };
  edge();
  ctx.clip();
  if (EMPTY.has(letter)) emptyCell(ctx, side, letter);
  else seedCell(ctx, side, letter, Number(code.charAt(1)) / 9, isTwin);
  ctx.strokeStyle = EMPTY.has(letter) ? thin("line-strong", side >= LETTERS_FROM ? 1 : 0.5) : color(`stage-${letter}`);
  ctx.lineWidth = EMPTY.has(letter) ? 1.5 : side >= LETTERS_FROM ? 3 : 2;
  edge();
  ctx.stroke();
  return canvas;
}

function emptyCell(ctx, side, letter) {
  ctx.fillStyle = thin("surface", 0.6);
  if (side >= LETTERS_FROM) ctx.fillRect(0, 0, side, side);
  if (side >= LETTERS_FROM && letter !== "D") writeLetter(ctx, side, letter, color("quiet"));
}

function seedCell(ctx, side, letter, alpha, isTwin) {
  const full = color(`stage-${letter}`);
  const top = side * (1 - alpha);
  ctx.fillStyle = color("surface");
  ctx.fillRect(0, 0, side, side);
  ctx.fillStyle = thin(`stage-${letter}`, side >= LETTERS_FROM ? 0.32 : 0.5);
  ctx.fillRect(0, 0, side, side);
  ctx.fillStyle = full;
  ctx.fillRect(0, top, side, side - top);
  const shown = side >= LETTERS_FROM ? (isTwin ? letter.toLowerCase() : letter) : "";
  writeLetter(ctx, side, shown, color("ink"), [0, top]);
  writeLetter(ctx, side, shown, color(`on-stage-${letter}`), [top, side]);
  if (isTwin) {
    ctx.fillStyle = alpha > 0.8 ? color(`on-stage-${letter}`) : full;
    ctx.beginPath();
    ctx.moveTo(side, 0);
    ctx.lineTo(side, side * 0.42);
    ctx.lineTo(side * 0.58, 0);
    ctx.fill();
  }
}

function writeLetter(ctx, side, letter, style, [top, bottom] = [0, side]) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(0, top, side, bottom - top);
  ctx.clip();
  ctx.fillStyle = style;
  ctx.font = `700 ${Math.round(side * 0.56)}px system-ui, -apple-system, sans-serif`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(letter, side / 2, side * 0.54);
  ctx.restore();
}

function outline(ctx, plan, host) {
  const [x, y] = corner(plan, host);
  ctx.strokeStyle = color("ink");
  ctx.lineWidth = 2;
  ctx.beginPath();
  ctx.roundRect(x + 1, y + 1, plan.tileWidth - 2, plan.tileHeight - 2, 5);
  ctx.stroke();
}
