/** Exams: what each arm scores for its size and its compute, and how it compares with the policy under test. */

import { el, fill, folded, svg, wide } from "./dom.js";
import { get, ofRun } from "./api.js";
import { counted, digits, fixed, known, operations, short, signed, size, whole } from "./format.js";
import { heads, number } from "./parts.js";
import { scatter } from "./scatter.js";
import { sentence, saySentence } from "./words.js";

const VERDICTS = { better: "policy is better", worse: "policy is worse", level: "no difference shown" };
const NO_EXAM = "There has been no exam yet: a run ends with a short one, and esper exam holds others.";
const LEAST_DIFFERENCE = 1e-6;
const RIVALS = ["never", "heuristic"];

/** Return all exams of a run in one table: J of the policy, and its lead over never growing and the heuristic. */
export function examOverview(exams) {
  const rivals = RIVALS.filter((name) => exams.some(({ arms }) => arms.some((arm) => arm.name === name)));
  const ends = exams.flatMap(({ arms }) => arms.filter(({ name }) => rivals.includes(name))).flatMap(endsOf);
  const far = Math.max(...ends, LEAST_DIFFERENCE);
  const rows = exams.map(({ setting, arms }) => {
    const own = arms.find((arm) => arm.own);
    const leads = rivals.map((name) => arms.find((arm) => arm.name === name));
    return el("tr", {}, el("td", {}, setting), number(fixed(own?.j)), number(size(own?.params)),
      leads.map((arm) => el("td", {}, arm ? against(arm, far) : "–")));
  });
  const names = ["setting", "#J", "#parameters", ...rivals.map((name) => `against ${name}, in J`)];
  return wide("All exams", el("table.arms", {}, heads(names), el("tbody", {}, rows)));
}

function endsOf({ difference }) {
  return difference ? [Math.abs(difference.low), Math.abs(difference.high)] : [];
}

/** Return the view of a run's exams. */
export function frontierView(page, id) {
  const lead = el("p.lead");
  const pick = el("select", { "aria-label": "Exam" });
  const body = examBody();
  const element = el("section", {}, el("div.controls", {}, pick), lead, body.element);
  let exams = [];
  let shown = "";
  const show = () => {
    const exam = exams[Number(pick.value) || 0];
    saySentence(lead, exam?.sentence ?? NO_EXAM);
    pick.parentElement.hidden = exams.length < 2;
    body.element.hidden = !exam;
    if (exam) body.update(exam);
  };
  pick.addEventListener("change", show);
  async function refresh(what) {
    await page.about(what);
    ({ exams } = await get(ofRun(id, "exams")));
    const now = JSON.stringify(exams.map(({ setting }) => setting));
    if (now !== shown) fill(pick, exams.map((exam, i) => el("option", { value: i }, exam.setting)));
    shown = now;
    show();
  }
  return { element, refresh, destroy: body.destroy, wants: ["exams", "state"] };
}

/** Return the pictures and tables of one exam, as {element, update, destroy}. */
export function examBody() {
  const pictures = examPictures();
  const tables = el("div");
  const element = el("div.exam", {}, pictures.element, tables);
  let shown = "";
  return {
    element,
    update(exam) {
      const now = JSON.stringify(exam);
      if (now === shown) return;
      shown = now;
      pictures.update(exam);
      fill(tables, armTable(exam, pictures.light), examFolds(exam));
    },
    destroy: pictures.destroy,
  };
}

/** Return score against parameters and against compute, as {element, update, light, destroy}. */
export function examPictures() {
  const both = [
    ["params", scatter({ title: "Score for its size", xName: "parameters", format: size })],
    ["flops", scatter({ title: "Score for its compute", xName: "FLOPs of an episode", format: short })],
  ];
  const element = el("div.pair", {}, both.map(([, one]) => el("div.card", {}, one.element)));
  return {
    element,
    update: (exam) => both.forEach(([field, one]) => one.update(pointsOf(exam, field))),
    light: (name) => both.forEach(([, one]) => one.light(name)),
    destroy: () => both.forEach(([, one]) => one.destroy()),
  };
}

/** Points of all arms: their score, or their metric where an old file holds no scores. */
function pointsOf(exam, field) {
  const hasScores = exam.arms.every((arm) => known(arm.score));
  const arms = exam.arms.filter((arm) => known(hasScores ? arm.score : arm.metric) && arm[field] > 0);
  const points = arms.map((arm) => {
    const [y, low, high] = hasScores ? [arm.score, arm.score_low, arm.score_high] : [arm.metric, arm.low, arm.high];
    const title = aboutArm(exam, arm);
    return { label: arm.name, x: arm[field], y, low: low ?? null, high: high ?? null, own: arm.own, title };
  });
  return { points, yName: hasScores ? "score" : exam.metric, isBetterBelow: !hasScores && exam.lower_is_better };
}

function aboutArm({ metric }, arm) {
  const quality = `J ${fixed(arm.j)}, ${metric} ${fixed(arm.metric)}`;
  const cost = `${size(arm.params)} parameters, ${operations(arm.flops)}`;
  return `${arm.name}: ${quality}, ${cost}${arm.does ? `; ${arm.does}` : ""}`;
}

/** Return the table of an exam's arms in five columns; `light` is told the arm that is pointed at. */
export function armTable(exam, light = () => {}) {
  const far = Math.max(...exam.arms.flatMap(endsOf), LEAST_DIFFERENCE);
  const rows = exam.arms.map((arm) => {
    const name = el("td", { title: arm.does || null }, arm.name, arm.own ? el("small.tag", {}, "this policy") : null);
    const row = el(arm.own ? "tr.own" : "tr", {}, name, number(fixed(arm.j)), number(fixed(arm.metric)),
      number(size(arm.params)), el("td", {}, against(arm, far)));
    row.addEventListener("pointerenter", () => light(arm.name));
    row.addEventListener("pointerleave", () => light(null));
    return row;
  });
  const names = ["arm", "#J", `#${exam.metric}`, "#parameters", `${exam.policy} against it, in J`];
  return wide(`Arms of the exam on ${exam.setting}`, el("table.arms", {}, heads(names), el("tbody", {}, rows)));
}

function against({ difference, verdict }, far) {
  if (!difference) return "";
  const { mean, low, high } = difference;
  const says = VERDICTS[verdict] ?? VERDICTS.level;
  const title = `${signed(mean)} (95 % interval ${signed(low)} to ${signed(high)}): ${says}`;
  return el("div.against", { title, "data-verdict": verdict }, el("span.number", {}, signed(mean)),
    whisker(mean, low, high, far), el("span.says", {}, says));
}

function whisker(mean, low, high, far) {
  const x = (value) => 50 + (46 * value) / far;
  return svg("svg.whisker", { viewBox: "0 0 100 16", "aria-hidden": "true" },
    svg("line.zero", { x1: 50, x2: 50, y1: 1, y2: 15 }),
    svg("line", { x1: x(low), x2: x(high), y1: 8, y2: 8 }), svg("circle", { cx: x(mean), cy: 8, r: 3.6 }));
}

/** Return everything else about an exam, folded. */
export function examFolds(exam) {
  const interval = (found) => (found && known(found.low) ? `${fixed(found.low)} to ${fixed(found.high)}` : "–");
  const rows = exam.arms.map((arm) => {
    const figures = [fixed(arm.score), fixed(arm.growth, 2), short(arm.flops), digits(arm.lr), fixed(arm.iqm)];
    const cells = [...figures, interval(arm), interval(arm.difference)].map((text) => number(text));
    return el(arm.own ? "tr.own" : "tr", {}, el("td", {}, arm.name), cells, el("td.text", {}, arm.plan || "–"));
  });
  const names = ["arm", "#score", "#growth", "#FLOPs", "#learning rate", `#middle half of ${exam.metric}`,
    "#its 95 % interval", "#against it in J, 95 % interval", "plan"];
  const told = exam.arms.filter((arm) => arm.does);
  return [
    folded("All figures", wide("All figures", el("table.dense", {}, heads(names), el("tbody", {}, rows)))),
    folded("What the arms do", el("dl.facts", {}, told.map((arm) => [el("dt", {}, arm.name), el("dd", {}, arm.does)]))),
    folded("How the exam was held", el("p.prose", {}, sentence(held(exam)))),
  ];
}

function held({ hosts, trainings, data, episode, rent, budget, about }) {
  const spent = `every host spends ${operations(budget)}`;
  const length = known(budget) ? spent : `an episode has ${counted(episode, "epoch")}`;
  const times = trainings > 1 ? ` in each of ${whole(trainings)} trainings` : "";
  const equal = `${counted(hosts, "fresh host")} for every arm${times}, with the same initial weights and batches`;
  return `${equal}; scores on ${data} data; ${length}; the price of growth is ${digits(rent)}. ${about ?? ""}`;
}
