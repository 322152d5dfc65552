/** The list of recorded lives, and lives as far as a garden shows them. */

import { el, fill, wide } from "./dom.js";
import { get, ofRun } from "./api.js";
import { counted, fixed, whole } from "./format.js";
import { gardenFrames, lifeAround } from "./frames.js";
import { lifeBody } from "./life.js";
import { heads, number } from "./parts.js";
import { saySentence } from "./words.js";

const MOST_LISTED = 500;
const NOTHING_RECORDED = "No life is recorded yet: exams record some, and the garden shows those of training.";

/** Return the list of recorded lives. */
export function livesView(page, id) {
  const lead = el("p.lead");
  const body = el("tbody");
  const table = el("table", {}, heads(["setting", "arm", "host", "#score", "#growth", "#decisions"]), body);
  const element = el("section", {}, lead, wide("Recorded lives", table));
  async function refresh(what) {
    await page.about(what);
    const { lives } = await get(ofRun(id, "lives"));
    element.lastElementChild.hidden = !lives.length;
    saySentence(lead, lives.length ? livesText(lives) : NOTHING_RECORDED);
    fill(body, lives.slice(0, MOST_LISTED).map((life) => lifeRow(id, life)));
  }
  return { element, refresh, destroy() {}, wants: ["state", "exams"] };
}

function livesText(lives) {
  const arms = new Set(lives.map(({ arm }) => arm)).size;
  const recorded = `${counted(lives.length, "life", "lives")} under ${counted(arms, "arm")} of the exam`;
  const listed = lives.length > MOST_LISTED ? ` The first ${whole(MOST_LISTED)} are listed.` : "";
  return `${recorded}, recorded decision by decision: open one to see what became of its host.${listed}`;
}

function lifeRow(id, { index, task, kind, arm, host, score, growth, epochs }) {
  const link = el("a", { href: `#/run/${encodeURIComponent(id)}/life/${index}` }, `host ${host}`);
  const row = el("tr.link", {}, el("td", {}, `${task}, ${kind}`), el("td", {}, arm), el("td", {}, link),
    number(fixed(score)), number(fixed(growth, 2)), number(whole(epochs)));
  row.addEventListener("click", (event) => event.target.closest("a") ?? link.click());
  return row;
}

/** Return the view of a host's life as far as the garden shows it. */
export function hostView(page, id, fleet, host, at) {
  const frames = gardenFrames(id);
  const body = lifeBody();
  const lead = el("p.lead");
  const back = el("a", { href: `#/run/${encodeURIComponent(id)}/garden` }, "‹ Back to the garden");
  const element = el("section", {}, el("nav.around", {}, back), lead, body.element);
  async function refresh() {
    await page.about(["garden"]);
    await frames.refresh();
    const about = frames.fleets()[fleet];
    if (!about || !(host < about.hosts) || !(at >= 0)) throw new Error("This garden has no such host.");
    const { life, isWhole } = await lifeAround(frames, fleet, host, Math.min(at, frames.count() - 1));
    if (!life.length) throw new Error("This part of the garden cannot be read.");
    saySentence(lead, hostLead(about.label, host, life, isWhole));
    const epochs = life.map((moment, epoch) => ({ ...moment, epoch }));
    body.update({ slots: about.slots, never: null, epochs, isBefore: true });
  }
  return { element, refresh, destroy: body.destroy, wants: ["state"] };
}

function hostLead(label, host, life, isWhole) {
  const last = life.at(-1);
  const epoch = `epoch ${whole(life.length - 1)}${isWhole ? "" : " or later"} of its life`;
  const scores = `it scores ${fixed(last.score)}, and scored ${fixed(life[0].score)} at first`;
  return `Host ${host} of ${label} in ${epoch} (update ${whole(last.update)}): ${scores}.`;
}
