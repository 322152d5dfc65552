/** A model that grows in its own training: loss, size, births and compute. */

import { el, fill, wide } from "./dom.js";
import { get, ofRun } from "./api.js";
import { chart, chartGroup } from "./charts.js";
import { digits, known, operations, percent, short, size, spoken, whole } from "./format.js";
import { figures, heads, number, record } from "./parts.js";
import { saySentence } from "./words.js";

const LEAST_RATIO = 5;
const BIRTHS = new Set(["deepen", "plant", "keep", "fossilize"]);
const REMOVALS = new Set(["prune", "undo", "discard", "rollback"]);

/** Return the view of a growth. */
export function growthView(page, id) {
  const lead = el("p.lead");
  const key = figures();
  const curves = growthCurves();
  const events = el("div");
  const options = el("div");
  const element = el("section", {}, lead, key.element, curves.element, events, options);
  let shown = "";
  async function refresh(what) {
    await page.about(what);
    const found = await get(ofRun(id, "growth"));
    saySentence(lead, found.sentence);
    key.update(growthFigures(found));
    curves.update(found);
    const now = JSON.stringify(found.events);
    if (now !== shown) fill(events, eventTable(found.events));
    shown = now;
    if (!options.firstChild) fill(options, record("Options", found.options));
  }
  return { element, refresh, wants: ["growth", "state"], destroy: curves.destroy };
}

function growthFigures({ steps, spent, budget, parameters, blocks, points, events }) {
  const births = events.filter(({ kind }) => BIRTHS.has(kind)).length;
  const items = [
    ["loss", digits(points.loss.findLast(known)), "average in training"],
    ["parameters", size(parameters[1]), `${size(parameters[0])} at first`],
    ["births", whole(births), "seeds planted, blocks added"],
    ["compute", operations(spent), known(budget) ? `${percent(spent / budget)} of ${operations(budget)}` : "no budget"],
    ["steps", whole(steps), "of training"],
  ];
  if (blocks[1]) items.splice(2, 0, ["blocks", whole(blocks[1]), `${whole(blocks[0])} at first`]);
  return items;
}

function growthCurves() {
  const group = chartGroup();
  const common = { group, unit: "compute", isCompute: true, formatX: operations };
  const place = el("div.card");
  const parameters = chart({
    ...common, title: "Parameters", height: 150, stepped: true, fromZero: true, format: size, formatAxis: short,
  });
  const element = el("div", {}, place, el("div.card", {}, parameters.element));
  let loss = null;
  let isLog = null;
  function update({ points, events }) {
    const rules = events.filter(({ kind }) => BIRTHS.has(kind) || REMOVALS.has(kind)).map(ruleOf);
    if (isLog !== isSteep(points.loss)) {
      loss?.destroy();
      isLog = isSteep(points.loss);
      loss = chart({ ...common, title: "Loss against compute", height: 300, log: isLog });
      fill(place, loss.element);
    }
    loss.update({ x: points.flops, series: lossSeries(points), rules });
    const sizes = [{ label: "", values: points.parameters, color: "accent", fill: true }];
    parameters.update({ x: points.flops, series: sizes, rules: rules.map((rule) => ({ ...rule, label: "" })) });
  }
  return { element, update, destroy: () => [loss, parameters].forEach((one) => one?.destroy()) };
}

function lossSeries({ loss, metric }) {
  const training = { label: "training loss", values: loss, color: "accent", width: 2.5 };
  const other = { label: "validation", values: metric, color: "series-1", points: true, dash: [3, 3] };
  return metric.some(known) ? [training, other] : [training];
}

function ruleOf({ flops, kind, blocks }) {
  return { x: flops, label: kind === "deepen" ? `${blocks} blocks` : spoken(kind), isBirth: BIRTHS.has(kind) };
}

/** Whether losses differ so much that their axis should be logarithmic. */
function isSteep(values) {
  const found = values.filter(known);
  return found.length > 0 && Math.min(...found) > 0 && Math.max(...found) > LEAST_RATIO * Math.min(...found);
}

function eventTable(events) {
  if (!events.length) return el("p.quiet", {}, "Nothing has happened yet.");
  const names = ["#step", "#compute", "what happened", "#loss", "#parameters", "#blocks"];
  const table = el("table", {}, heads(names), el("tbody", {}, events.map(eventRow)));
  return [el("h2", {}, "What happened when"), wide("What happened when", table)];
}

function eventRow({ kind, step, share, flops, parameters, blocks, loss, detail }) {
  const [style, sign] = BIRTHS.has(kind) ? ["birth", "+"] : REMOVALS.has(kind) ? ["removal", "−"] : ["quiet", "·"];
  const what = el(`td.what.${style}`, {}, el("b", {}, `${sign} ${spoken(kind)}`), detail ? ` ${detail}` : "");
  const spent = known(share) ? `${operations(flops)} · ${percent(share)}` : operations(flops);
  const after = [digits(loss), size(parameters), whole(blocks)].map((text) => number(text));
  return el("tr", {}, number(whole(step)), number(spent), what, after);
}
