/** One run of a controller: how J moves, what it does and plants, and what deserves attention. */

import { el, fill, folded, say } from "./dom.js";
import { get, ofRun } from "./api.js";
import { chart, chartGroup } from "./charts.js";
import { fixed, known, percent, signed, spoken, whole } from "./format.js";
import { command, factList, figures, record } from "./parts.js";
import { opColor, opLetter, seriesColor, seriesDash } from "./series.js";
import { ticks } from "./spark.js";
import { opMeaning, saySentence } from "./words.js";

const MOST_PLANTED = 7;
const FEW_LINES = 4;
const LEAST_SMOOTHED = 20;
const MORE = [
  ["Score and growth", ["score", "growth"]],
  ["Learning", ["explained_variance", "policy_loss", "value_loss", "approx_kl", "entropy", "grad_norm"]],
  ["Reward, price and speed", ["reward", "rent", "episodes", "sick", "seconds"]],
];
const NAMED = {
  rent: "price of growth", approx_kl: "approximate KL", grad_norm: "gradient norm", sick: "hosts that failed",
};

/** Return the view of one run. */
export function runView(page, id) {
  const lead = el("p.lead");
  const body = runBody();
  const facts = el("div");
  const element = el("section.run-view", {}, lead, body.element, facts);
  let said = "";
  async function refresh(what) {
    const about = await page.about(what);
    if (about.views.length && !about.views.includes("run")) return page.go(about.views[0]);
    saySentence(lead, about.sentence);
    body.update(await get(`${ofRun(id, "curves")}?points=600`), about.never);
    const now = JSON.stringify([about.facts, about.config, about.environment, about.resume]);
    if (now !== said) fill(facts, goOn(about.resume), factSections(about));
    said = now;
    return null;
  }
  return { element, refresh, destroy: body.destroy, wants: ["reports", "state", "exams"] };
}

function goOn(resume) {
  return resume ? [el("h2", {}, "Go on with this run"), command(resume)] : null;
}

/** Return facts, recipe and environment of a run. */
export function factSections({ facts, config, environment }) {
  const records = [record("Recipe", config), record("Environment", environment)];
  return [el("h2", {}, "About this run"), factList(facts), records];
}

/** Everything that is drawn from curves, as {element, update, destroy}. */
function runBody() {
  const group = chartGroup();
  const key = figures();
  const learning = learningChart(group);
  const found = anomalyList();
  const shares = shareCharts(group);
  const more = moreCharts(group);
  const note = el("p.quiet");
  const attention = el("section", {}, el("h2", {}, "What deserves attention"), found.element);
  const further = el("section.more", {}, el("h2", {}, "More curves"), more.folds);
  const first = el("div.card", {}, learning.element);
  const element = el("div", {}, key.element, first, note, attention, shares.element, further);
  function update(curves, never) {
    key.update(keyFigures(curves, never));
    say(note, curves.note ?? "");
    for (const part of [learning, found, shares, more]) part.update(curves);
  }
  return { element, update, destroy: () => [learning, shares, more].forEach((part) => part.destroy()) };
}

function keyFigures({ columns, high, updates, of }, never) {
  const last = (name) => columns[name].findLast(known) ?? null;
  const found = high.objective.filter(known);
  const best = found.length ? Math.max(...found) : null;
  const isAbove = known(best) && known(never);
  const size = known(last("growth")) ? `${fixed(1 + last("growth"), 1)} × the bare host` : "";
  return [
    ["J now", fixed(last("objective")), "mean of the latest update"],
    ["best J", fixed(best), isAbove ? `${signed(best - never)} against never growing` : "highest mean of an update"],
    ["score", fixed(last("score")), "how well hosts do their task"],
    ["growth", fixed(last("growth"), 2), size],
    ["updates", whole(updates), of ? `of ${whole(of)}` : ""],
  ];
}

/** Return the curve of J with its reference lines, of which the reader may choose others. */
export function learningChart(group = chartGroup()) {
  const curve = chart({ title: "J against updates", height: 320, group, format: fixed });
  const picks = el("div.picks", { role: "group", "aria-label": "Lines to compare with" });
  const element = el("div", {}, curve.element, picks);
  const picked = new Map();
  let now = null;
  const draw = () => curve.update(learningData(now, picked));
  function offer(lines) {
    for (const { label } of lines) if (!picked.has(label)) picked.set(label, isShown(label, lines));
    if (picks.children.length === lines.length) return;
    fill(picks, lines.map(({ label }) => {
      const box = el("input", { type: "checkbox", onchange: () => (picked.set(label, box.checked), draw()) });
      box.checked = picked.get(label);
      return el("label", {}, box, label);
    }));
  }
  function update(curves) {
    now = curves;
    offer(curves.lines);
    draw();
  }
  return { element, update, destroy: () => curve.destroy() };
}

/** At first, never growing and the controller's own exam are shown, or all if they are few. */
function isShown(label, lines) {
  const never = lines.find((line) => line.label.includes("never"));
  return label === never?.label || label.endsWith("learned") || lines.length < FEW_LINES;
}

function learningData({ x, columns, low, high, lines, anomalies }, picked) {
  const isWide = low.objective.some((value, i) => known(value) && value !== high.objective[i]);
  const raw = { label: "J", values: columns.objective, color: "accent", width: 2.5 };
  const smooth = { label: "smoothed", values: smoothed(columns.objective), color: "accent", width: 2.5 };
  return {
    x,
    series: x.length < LEAST_SMOOTHED ? [raw] : [{ ...raw, width: 1, isFaint: true }, smooth],
    low: isWide ? low.objective : null,
    high: isWide ? high.objective : null,
    lines: lines.filter(({ label, value }) => picked.get(label) && known(value)),
    marks: anomalies.flatMap(({ updates }) => updates.map((update) => ({ x: update }))),
  };
}

/** Means over the neighbors of each value, a twelfth of all. */
function smoothed(values) {
  const reach = Math.ceil(values.length / 24);
  return values.map((_, i) => {
    const near = values.slice(Math.max(0, i - reach), i + reach + 1).filter(known);
    return near.length ? near.reduce((sum, value) => sum + value, 0) / near.length : null;
  });
}

/** Return what the controller does and plants, as {element, update, destroy}. */
export function shareCharts(group = chartGroup()) {
  const common = { height: 220, group, stacked: true, range: [0, 1], format: percent };
  const mix = chart({ ...common, title: "What the controller does" });
  const planted = chart({ ...common, title: "What it plants" });
  const nothing = el("p.quiet", {}, "The log of this run does not say what was planted.");
  const places = [mix.element, el("div", {}, planted.element, nothing)];
  const element = el("div.pair", {}, places.map((place) => el("div.card", {}, place)));
  function update(curves) {
    const plants = Object.keys(curves.planted).length > 0;
    planted.element.hidden = !plants;
    nothing.hidden = plants;
    mix.update(sharesOf(curves.x, curves.mix, opSeries));
    if (plants) planted.update(sharesOf(curves.x, gathered(curves.planted), plantSeries));
  }
  return { element, update, destroy: () => [mix, planted].forEach((one) => one.destroy()) };
}

function sharesOf(x, mix, lookOf) {
  const series = Object.entries(mix).map(([name, values], i) => ({ label: spoken(name), values, ...lookOf(name, i) }));
  return { x, series };
}

function opSeries(name) {
  return { color: opColor(name), letter: opLetter(name), about: opMeaning(name) };
}

function plantSeries(name, index) {
  return name === "others" ? { color: "op-W", letter: "…" } : { color: `area-${index}`, letter: name.slice(0, 1) };
}

/** The blueprints that are planted most, and all others together. */
function gathered(planted) {
  const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
  const sorted = Object.entries(planted).sort(([, a], [, b]) => sum(b) - sum(a));
  const rest = sorted.slice(MOST_PLANTED).map(([, values]) => values);
  if (!rest.length) return Object.fromEntries(sorted);
  const others = rest[0].map((_, i) => {
    const here = rest.map((values) => values[i]);
    return here.every((value) => value === null) ? null : sum(here);
  });
  return Object.fromEntries([...sorted.slice(0, MOST_PLANTED), ["others", others]]);
}

/** Return the list of anomalies, as {element, update}. */
export function anomalyList() {
  const list = el("ul.anomalies");
  const none = el("p.quiet", {}, "No anomalies.");
  const element = el("div", {}, none, list);
  let shown = "";
  function update({ anomalies, x }) {
    const now = JSON.stringify([anomalies, x.at(-1)]);
    if (now === shown) return;
    shown = now;
    none.hidden = anomalies.length > 0;
    fill(list, anomalies.map((anomaly) => anomalyItem(anomaly, x.at(-1) ?? 1)));
  }
  return { element, update };
}

function anomalyItem({ kind, where, count, updates, explanation, suggestion }, end) {
  const [first, last] = [updates[0], updates.at(-1)];
  const when = first === last ? `update ${whole(first)}` : `updates ${whole(first)} to ${whole(last)}`;
  const times = count === 1 ? "once" : `${whole(count)} times`;
  const what = el("div.what", {}, el("b", {}, spoken(kind)), ` · ${spoken(where)} · ${times}, ${when}`);
  const advice = el("p", {}, el("span.do", {}, "To do: "), ended(suggestion));
  return el("li", {}, what, ticks(updates, end), el("p", {}, ended(explanation)), advice);
}

function ended(text) {
  return text && !/[.!?]$/.test(text) ? `${text}.` : text;
}

/** Return the curves that are folded away, as {folds, update, destroy}. */
export function moreCharts(group = chartGroup()) {
  const single = new Map();
  const grid = (names) => el("div.grid", {}, names.map((name) => {
    single.set(name, chart({ title: NAMED[name] ?? spoken(name), height: 150, group }));
    return single.get(name).element;
  }));
  const folds = MORE.map(([title, names]) => folded(title, grid(names)));
  const byHead = new Map(["entropy", "approx_kl"].map((name) => {
    return [name, chart({ title: `${NAMED[name] ?? name} of each head`, height: 240, group })];
  }));
  const pair = el("div.pair", {}, [...byHead.values()].map((one) => one.element));
  folds.push(folded("Entropy and KL of each head", pair));
  function update({ x, columns, heads }) {
    const alone = (name) => [{ label: "", values: columns[name], color: "accent" }];
    for (const [name, one] of single) one.update({ x, series: alone(name) });
    for (const [name, one] of byHead) one.update({ x, series: headSeries(heads, name) });
  }
  const destroy = () => [...single.values(), ...byHead.values()].forEach((one) => one.destroy());
  return { folds, update, destroy };
}

function headSeries(heads, name) {
  return Object.entries(heads).map(([head, found], i) => {
    return { label: spoken(head), values: found[name], color: seriesColor(i), dash: seriesDash(i) };
  });
}
