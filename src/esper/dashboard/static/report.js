/** The report of a run: one page that holds its own data. First what came out, then the picture, then a table. */

import { el, folded, icon, printed } from "./dom.js";
import { embed, get, holds, ofRun } from "./api.js";
import { armTable, examBody, examFolds, examOverview, examPictures } from "./frontier.js";
import { lifeBody, lifeText } from "./life.js";
import { problemPlace } from "./parts.js";
import { anomalyList, factSections, learningChart, moreCharts, shareCharts } from "./run.js";
import { themeSwitch } from "./theme.js";
import { loadWords, meaning, sentence } from "./words.js";

const ID = "report";
const LEAF = "M12 22v-9M12 14c0-5-3.5-8-9-8 0 5 3.5 8 9 8Zm0-3c0-5 3.5-8 9-8 0 5-3.5 8-9 8Z";

/** Return the parts of the report, in reading order. */
async function reportParts() {
  const about = await get(ofRun(ID));
  const curves = await get(`${ofRun(ID, "curves")}?points=600`);
  const { exams } = await get(ofRun(ID, "exams"));
  const lives = await heldLives();
  const title = el("div.title-line", {}, el("h1", {}, about.name), el("span.about", {}, about.title));
  return [
    title, el("p.lead", {}, sentence(about.sentence)), problems(about, curves), picture(curves, exams), tables(exams),
    explanations(),
    chapter(exams.length > 1 ? "The exams" : "The exam", exams.length ? examDetails(exams) : []),
    chapter("The training", curves.updates ? training(curves) : []), chapter("Some of its hosts", examples(lives)),
    factSections(about),
  ];
}

function chapter(title, folds) {
  return folds.length ? el("section", {}, el("h2", {}, title), folds) : null;
}

async function heldLives() {
  const { lives } = await get(ofRun(ID, "lives"));
  const held = lives.filter(({ index }) => holds(ofRun(ID, "lives", index)));
  return Promise.all(held.map(({ index }) => get(ofRun(ID, "lives", index))));
}

function problems({ problem }, { note }) {
  const place = problemPlace();
  place.show([problem, note].filter(Boolean).join(" "));
  return place.element;
}

/** J against updates; without training, the frontier of the first exam. */
function picture(curves, exams) {
  if (curves.updates) {
    const learning = learningChart();
    learning.update(curves);
    return el("div.card", {}, learning.element);
  }
  if (!exams.length) return null;
  const both = examPictures();
  both.update(exams[0]);
  return [exams.length > 1 ? el("h2", {}, exams[0].setting) : null, both.element];
}

function tables(exams) {
  if (!exams.length) return el("p.quiet", {}, "No exam has been held yet that compares the controller with others.");
  return el("div.exam", {}, exams.length > 1 ? examOverview(exams) : armTable(exams[0]));
}

function explanations() {
  const words = ["J", "growth"].filter(meaning);
  return el("dl.facts.meanings", {}, words.map((word) => [el("dt", {}, word), el("dd", {}, meaning(word))]));
}

function examDetails(exams) {
  const told = (exam) => el("p.prose", {}, sentence(exam.sentence));
  if (exams.length !== 1) return exams.map((exam) => printed(exam.setting, told(exam), examParts(exam)));
  const both = examPictures();
  both.update(exams[0]);
  return [printed("Score for size and compute", both.element), examFolds(exams[0])];
}

function examParts(exam) {
  const body = examBody();
  body.update(exam);
  return body.element;
}

function training(curves) {
  const shares = shareCharts();
  const found = anomalyList();
  const more = moreCharts();
  for (const part of [shares, found, more]) part.update(curves);
  return [printed("What the controller does and plants", shares.element),
    printed(`What deserves attention (${curves.anomalies.length || "nothing"})`, found.element),
    more.folds];
}

function examples(lives) {
  return lives.map((life) => {
    const body = lifeBody();
    body.update(life);
    return folded(`Life of host ${life.host} on ${life.task}`, el("p.prose", {}, lifeText(life)), body.element);
  });
}

embed(JSON.parse(document.getElementById("data").textContent).paths);
await loadWords();
const sign = el("span.home", {}, icon(LEAF), el("b", {}, "Esper"));
const reportHead = el("header.top", {}, sign, el("span.space"), themeSwitch());
const reportMain = el("main.report");
document.body.append(reportHead, reportMain);
reportMain.append(...(await reportParts()).flat(Infinity).filter(Boolean));
