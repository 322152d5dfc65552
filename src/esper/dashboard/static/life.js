/** The life of one host: how it scored, what it held, and every decision. */

import { el, fill, wide } from "./dom.js";
import { get, ofRun } from "./api.js";
import { chart, chartGroup } from "./charts.js";
import { counted, fixed, known, operations, short, signed, size, spoken, whole } from "./format.js";
import { figures, heads, legend, number } from "./parts.js";
import { EMPTY, OPS, opLetter, seriesColor, seriesDash, STAGES } from "./series.js";
import { legalOps, opBar, otherHeads, stageStrips } from "./strips.js";
import { opMeaning, saySentence, stageMeaning } from "./words.js";

const FEW = 40;

/** Return the view of one recorded life of an exam. */
export function lifeView(page, id, index) {
  const around = el("nav.around", { "aria-label": "Other lives" });
  const body = lifeBody();
  const lead = el("p.lead");
  const element = el("section", {}, around, lead, body.element);
  async function refresh(what) {
    await page.about(what);
    const [life, list] = await Promise.all([get(ofRun(id, "lives", index)), get(ofRun(id, "lives"))]);
    saySentence(lead, lifeText(life));
    body.update(life);
    fill(around, aroundLinks(id, index, list.lives));
  }
  return { element, refresh, destroy: body.destroy, wants: ["state", "exams"] };
}

function aroundLinks(id, index, lives) {
  const run = `#/run/${encodeURIComponent(id)}`;
  const here = lives.find((life) => life.index === index);
  const isSame = (life) => ["host", "task", "kind"].every((name) => life[name] === here?.[name]);
  const arms = lives.filter(isSame).map((life) => {
    const current = life.index === index ? "page" : null;
    return el("a", { href: `${run}/life/${life.index}`, "aria-current": current }, life.arm);
  });
  const to = (other, label) => lives[other] && el("a", { href: `${run}/life/${lives[other].index}` }, label);
  return [
    el("a", { href: `${run}/lives` }, "All lives"), to(index - 1, "‹ before"), to(index + 1, "next ›"),
    arms.length > 1 ? el("span.alike", {}, "the same host under: ", arms) : null,
  ];
}

/** Say what became of a host, in one sentence. */
export function lifeText({ task, kind, arm, host, never, epochs }) {
  const [first, last] = [epochs[0], epochs.at(-1)];
  const planted = epochs.filter(({ op, refused }) => op === "GERMINATE" && !refused).length;
  const kept = last.slots.filter(({ blueprint }) => blueprint).length;
  const seeds = planted ? ` (${counted(planted, "seed")} planted, ${whole(kept)} held)` : "";
  const grown = last.parameters === bareSize(first) ? `stayed at ${size(last.parameters)} parameters`
    : `grew from ${size(bareSize(first))} to ${size(last.parameters)} parameters`;
  const lead = never?.length ? last.score - never.at(-1) : null;
  const level = known(lead) && signed(lead) === "0.000";
  const ended = !known(lead) ? "" : level ? ", as much as the same host never grown"
    : `, ${fixed(Math.abs(lead))} ${lead > 0 ? "more" : "less"} than the same host never grown`;
  return `Under ${arm}, host ${host} of ${task} (${kind}) ${grown}${seeds} and scores ${fixed(last.score)}${ended}.`;
}

/** Parameters of the host without its seeds. */
function bareSize({ parameters, growth }) {
  return Math.round(parameters / (1 + growth));
}

/** Return everything that is drawn of a life, as {element, update, destroy}. */
export function lifeBody() {
  const curves = lifeCurves();
  const strips = el("div");
  const key = figures();
  const decisions = el("div");
  const { score, alpha, parameters, flops } = curves;
  const costs = el("div.pair", {}, el("div.card", {}, parameters.element), el("div.card", {}, flops.element));
  const course = el("div.card", {}, score.element, alpha.element, strips, legend(stageItems()));
  const element = el("div.life", {}, key.element, course, costs, decisions);
  let shown = "";
  function update(life) {
    const now = JSON.stringify(life);
    if (now === shown) return;
    shown = now;
    costs.hidden = !life.epochs.some((epoch) => known(epoch.parameters));
    curves.update(life);
    fill(strips, stageStrips(life.slots, life.epochs));
    key.update(lifeFigures(life));
    fill(decisions, decisionTable(life));
  }
  return { element, update, destroy: () => [score, alpha, parameters, flops].forEach((one) => one.destroy()) };
}

function lifeCurves() {
  let length = 1;
  const common = { group: chartGroup(), unit: "epoch", firstX: -0.5, lastX: () => length - 0.5 };
  const score = chart({ ...common, title: "Score", height: 240, format: fixed });
  const alpha = chart({
    ...common, title: "Alpha: how strongly the host hears the seed of each slot", height: 130, range: [-0.03, 1.03],
    format: (value) => fixed(value, 1),
  });
  const small = { ...common, height: 150, formatAxis: short };
  const parameters = chart({ ...small, title: "Parameters", stepped: true, format: size });
  const flops = chart({ ...small, title: "Compute spent", format: operations });
  function update({ epochs, slots, never }) {
    length = Math.max(epochs.length, 1);
    const x = epochs.map((_, i) => i);
    const column = (name) => epochs.map((epoch) => epoch[name] ?? null);
    const filled = (values) => [{ label: "", values, color: "accent", fill: true }];
    const grown = { label: "this host", values: column("score"), color: "accent", width: 2.5, points: length < FEW };
    const other = { label: "never grown", values: x.map((i) => never?.[i] ?? null), color: "quiet", dash: [5, 4] };
    score.update({ x, series: never ? [grown, other] : [grown] });
    alpha.update({ x, series: slots.map((name, i) => alphaOf(name, i, epochs)) });
    parameters.update({ x, series: filled(column("parameters")) });
    flops.update({ x, series: filled(summed(column("flops"))) });
  }
  return { score, alpha, parameters, flops, update };
}

function alphaOf(label, index, epochs) {
  const values = epochs.map((epoch) => epoch.slots[index].alpha);
  return { label, values, color: seriesColor(index), dash: seriesDash(index) };
}

function summed(values) {
  let sum = 0;
  return values.map((value) => (known(value) ? (sum += value) : null));
}

function lifeFigures({ epochs, never }) {
  const [first, last] = [epochs[0], epochs.at(-1)];
  const lead = never?.length ? `${signed(last.score - never.at(-1))} against never growing` : "";
  const flops = summed(epochs.map((epoch) => epoch.flops)).at(-1);
  const changes = epochs.filter(({ op }) => op !== "WAIT").length;
  const items = [["score", fixed(last.score), lead]];
  if (known(last.growth)) items.push(["growth", fixed(last.growth, 2), `${fixed(1 + last.growth, 1)} × the bare host`]);
  const bare = `${size(bareSize(first))} without seeds`;
  if (known(last.parameters)) items.push(["parameters", size(last.parameters), bare]);
  if (known(flops)) items.push(["compute", operations(flops), "spent on this host"]);
  return [...items, ["decisions", whole(epochs.length), `${counted(changes, "change")}`]];
}

/** The stages that a legend explains. */
export function stageItems() {
  const items = Object.entries(STAGES).filter(([name]) => name !== "DORMANT");
  return items.map(([name, letter]) => [letter, `stage-${letter}`, spoken(name), stageMeaning(name)]);
}

function decisionTable(life) {
  const { epochs } = life;
  const hasBars = epochs.some(({ legal, probabilities }) => legal?.length || probabilities?.op);
  const hasSize = known(epochs[0]?.parameters);
  const names = ["#epoch", "chosen", hasBars && "what was legal, and how likely", "#score", hasSize && "#parameters"];
  const rows = epochs.map((epoch, i) => decisionRow(epoch, changeOf(life, i), { hasBars, hasSize }));
  const ops = Object.keys(OPS).map((name) => [opLetter(name), `op-${opLetter(name)}`, spoken(name), opMeaning(name)]);
  const table = el("table.decisions", {}, heads(names.filter(Boolean)), el("tbody", {}, rows));
  return [el("h2", {}, "Every decision"), legend(ops), wide("Every decision", table)];
}

function decisionRow(epoch, change, { hasBars, hasSize }) {
  const { op, refused, legal = [], probabilities = {} } = epoch;
  const letter = el(`span.swatch.area.op-${opLetter(op)}`, { "aria-hidden": "true" }, opLetter(op));
  const text = ` ${spoken(op)}${change}${refused ? " (not legal, changed nothing)" : ""}`;
  const bars = probabilities.op ? [opBar(probabilities.op, op), otherHeads(probabilities)]
    : legal.length ? legalOps(legal, op) : null;
  return el("tr", {}, number(whole(epoch.epoch)), el(op === "WAIT" ? "td.op.quiet" : "td.op", {}, letter, text),
    hasBars && el("td.legal-of", {}, bars), number(fixed(epoch.score)), hasSize && number(size(epoch.parameters)));
}

/**
 * Say which slot an op changed, as far as the slots before and after it tell.
 *
 * Epochs of exams show slots after the op, frames of gardens (`isBefore`) those before it.
 */
function changeOf({ epochs, isBefore }, index) {
  const { op, refused } = epochs[index];
  const [before, after] = isBefore ? [epochs[index], epochs[index + 1]] : [epochs[index - 1], epochs[index]];
  if (refused || op === "WAIT" || !after) return "";
  const isEmpty = (slot) => !slot || EMPTY.has(STAGES[slot.stage]);
  const isOther = (slot, old) => isEmpty(old) || slot.blueprint !== old.blueprint;
  const isNew = (slot, i) => !isEmpty(slot) && isOther(slot, before?.slots[i]);
  if (op === "GERMINATE") {
    const found = after.slots.find(isNew);
    return found ? ` ${found.blueprint ? `${found.blueprint} ` : ""}in ${found.name}` : "";
  }
  const goals = { PRUNE: ["PRUNED", "EMBARGOED"], FOSSILIZE: ["FOSSILIZED"] }[op];
  const isMoved = (slot, i) => before && slot.stage !== before.slots[i].stage && (!goals || goals.includes(slot.stage));
  const found = after.slots.find(isMoved);
  return found ? ` ${found.name}` : "";
}
