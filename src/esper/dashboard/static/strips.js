/** Stages of slots over a life as strips, and probabilities as bars. */

import { el, fill } from "./dom.js";
import { counted, percent, spoken } from "./format.js";
import { opLetter, STAGES } from "./series.js";
import { stageMeaning } from "./words.js";

const SHOWN = 4;
const LEAST_SHARE = 0.07;

/** Return one strip per slot: a piece for every run of epochs with one stage and one seed. */
export function stageStrips(names, epochs) {
  const rows = names.map((name, slot) => {
    const runs = runsOf(epochs.map((epoch) => epoch.slots[slot]));
    const label = `${name}: ${runs.map(runText).join(", ")}`;
    const pieces = el("div.pieces", {}, runs.map(stagePiece));
    return el("div.strip", { role: "img", "aria-label": label }, el("span.name", {}, name), pieces);
  });
  return el("div.strips", {}, rows);
}

function runsOf(slots) {
  const runs = [];
  slots.forEach((slot, from) => {
    const last = runs.at(-1);
    const isSameSeed = last?.slot.blueprint === slot.blueprint;
    if (isSameSeed && last.slot.stage === slot.stage) last.length += 1;
    else runs.push({ slot, from, length: 1, isNew: Boolean(slot.blueprint) && !isSameSeed });
  });
  return runs;
}

function runText({ slot, from }) {
  return `${spoken(slot.stage)}${slot.blueprint ? ` ${slot.blueprint}` : ""} from ${from}`;
}

function stagePiece({ slot, length, isNew }) {
  const letter = STAGES[slot.stage] ?? "?";
  const seed = slot.blueprint ? ` (${slot.blueprint})` : "";
  const title = `${spoken(slot.stage)}${seed}, ${counted(length, "epoch")}. ${stageMeaning(slot.stage)}`;
  const label = letter === "D" ? "" : isNew ? `${letter} ${slot.blueprint}` : letter;
  const piece = el(`span.piece.stage-${letter}`, { title }, label);
  piece.style.flexGrow = length;
  return piece;
}

/** Return the probabilities of the ops as one bar; the chosen op is outlined. */
export function opBar(probabilities, chosen) {
  const shares = Object.entries(probabilities).filter(([, share]) => share > 0);
  const said = shares.map(([name, share]) => `${spoken(name)} ${percent(share)}`);
  const pieces = shares.map(([name, share], i) => {
    const letter = share < LEAST_SHARE ? "" : opLetter(name);
    const piece = el(`span.share${shareStyle(name, chosen)}`, { title: said[i] }, letter);
    piece.style.flexGrow = share;
    return piece;
  });
  return el("div.bar-of", { role: "img", "aria-label": said.join(", ") }, pieces);
}

function shareStyle(name, chosen) {
  return `.op-${opLetter(name)}${name === chosen ? ".chosen" : ""}`;
}

/** Return the ops that were legal as letters, for policies without probabilities. */
export function legalOps(legal, chosen) {
  const pieces = legal.map((name) => {
    return el(`span.share.even${shareStyle(name, chosen)}`, { title: spoken(name) }, opLetter(name));
  });
  return el("div.legal", { role: "img", "aria-label": `legal: ${legal.map(spoken).join(", ")}` }, pieces);
}

/** Return the likeliest choices of the other heads, made when they are unfolded. */
export function otherHeads(probabilities) {
  const heads = Object.entries(probabilities).filter(([head]) => head !== "op");
  if (!heads.length) return null;
  const inside = el("div.heads");
  const details = el("details.heads-of", {}, el("summary", {}, "where and what"), inside);
  details.addEventListener("toggle", () => {
    if (details.open && !inside.firstChild) fill(inside, heads.map(([head, choices]) => headLine(head, choices)));
  });
  return details;
}

function headLine(head, choices) {
  const sorted = Object.entries(choices).sort(([, a], [, b]) => b - a);
  const said = sorted.slice(0, SHOWN).map(([name, share]) => `${spoken(name)} ${percent(share)}`);
  if (sorted.length > SHOWN) said.push(counted(sorted.length - SHOWN, "other"));
  return el("p", {}, el("b", {}, spoken(head)), " ", said.join(", "));
}
