/** All runs of a folder: what each is doing and how well. */

import { el, fill, keep, mark, say } from "./dom.js";
import { get } from "./api.js";
import { ago, counted, digits, fixed, known, NONE, signed, whole } from "./format.js";
import { number, stateMark } from "./parts.js";
import { spark } from "./spark.js";
import { saySentence, term } from "./words.js";

const ROWS = 100;
const MOST_COMPARED = 8;
const STATES = ["running", "stopped", "done", "damaged"];
const COLUMNS = [
  { name: "compare", place: "c-choose", isUnseen: true }, { name: "run", place: "c-run", sort: "name" },
  { name: "state", place: "c-state" }, { name: "course", place: "c-course" },
  { name: "best J", place: "c-best.number", sort: "-best" }, { name: "against never", place: "c-against.number" },
  { name: "updates", place: "c-updates.number", sort: "-updates" },
  { name: "modified", place: "c-modified.number", sort: "-modified" },
];
const EMPTY_FOLDER = "Nothing here yet. Start a run: esper train smoke --run-dir runs/first";
/** What the reader chose, kept while other views are shown. */
const choices = { sort: "-modified", search: "", state: "", limit: ROWS, chosen: new Map() };

/** Return the view of all runs. */
export function runsView(page) {
  const parts = new Map();
  const lead = el("p.lead");
  const body = el("tbody");
  const further = () => change({ limit: choices.limit + ROWS });
  const more = el("button", { type: "button", hidden: true, onclick: further }, "Show more");
  const bar = compareBar(() => parts.forEach((part) => part.choose()));
  const head = sortHead((sort) => change({ sort }));
  const table = el("table.runs", {}, head.element, body);
  const empty = el("p.quiet", { hidden: true });
  const problems = el("ul.problems");
  const heading = el("h1", { tabindex: "-1" }, "Runs");
  const around = [heading, lead, controls(change), problems];
  const element = el("section.runs-view", {}, around, table, empty, more, bar.element);

  function change(next) {
    Object.assign(choices, next);
    page.refresh();
  }

  async function refresh() {
    const { sort, search, state, limit } = choices;
    const query = new URLSearchParams({ offset: 0, limit, sort, search, state });
    const found = await get(`/api/runs?${query}`);
    page.title(found.folder, found.folder);
    saySentence(lead, runsText(found));
    fill(problems, found.problems.map((text) => el("li", {}, text)));
    head.update(sort);
    keep(body, parts, found.runs, (run) => run.id, (run) => row(run, bar.update));
    bar.update();
    more.hidden = found.runs.length >= found.total;
    empty.hidden = found.runs.length > 0;
    table.hidden = !empty.hidden;
    say(empty, search || state ? "No run is like that." : EMPTY_FOLDER);
    page.live(found.runs.some((run) => run.state === "running") ? "running" : "idle");
  }
  return { element, refresh, destroy() {}, wants: ["runs", "state", "reports", "growth"] };
}

function runsText({ folder, total, runs }) {
  if (!total) return `There is no run in ${folder} yet.`;
  const count = (state) => runs.filter((run) => run.state === state).length;
  const many = runs.length < total ? `, of which the first ${whole(runs.length)} are listed` : "";
  const best = runs.filter((run) => run.kind === "run" && known(run.best) && known(run.never))
    .sort((a, b) => b.best - b.never - (a.best - a.never))[0];
  const lead = best && best.best > best.never
    ? ` ${best.name} is furthest above never growing: J ${fixed(best.best)}, ${signed(best.best - best.never)}.` : "";
  const states = STATES.filter(count).map((state) => `${whole(count(state))} ${state}`).join(", ");
  return `${counted(total, "run")}${many}: ${states}.${lead}`;
}

function controls(change) {
  let timer = 0;
  const search = el("input", {
    type: "search", placeholder: "Search", "aria-label": "Search by name or recipe", value: choices.search,
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => change({ search: search.value.trim(), limit: ROWS }), 200);
    },
  });
  const options = ["", ...STATES].map((state) => {
    return el("option", { value: state, selected: state === choices.state }, state || "all states");
  });
  const narrow = () => change({ state: select.value, limit: ROWS });
  const select = el("select", { "aria-label": "Show only runs in this state", onchange: narrow }, options);
  return el("div.controls", { role: "search" }, search, select);
}

function sortHead(choose) {
  const cells = COLUMNS.map(({ name, place, sort, isUnseen }) => {
    const text = isUnseen ? el("span.unseen", {}, name) : name === "against never" ? ["against ", term("never")] : name;
    const button = () => el("button.sort", { type: "button", onclick: () => choose(turned(sort)) }, name);
    return el(`th.${place}`, { scope: "col" }, sort ? button() : text);
  });
  return {
    element: el("thead", {}, el("tr", {}, cells)),
    update(now) {
      COLUMNS.forEach(({ sort }, i) => {
        const isSorted = sort && now.replace("-", "") === sort.replace("-", "");
        mark(cells[i], "aria-sort", isSorted ? (now.startsWith("-") ? "descending" : "ascending") : null);
      });
    },
  };
}

/** The order a click on a head asks for: its own first, then the other way round. */
function turned(sort) {
  const other = sort.startsWith("-") ? sort.slice(1) : `-${sort}`;
  return choices.sort === sort ? other : sort;
}

function row(first, chosen) {
  const { id } = first;
  const box = el("input", { type: "checkbox", "aria-label": `Compare ${first.name}` });
  const link = el("a", { href: `#/${first.kind}/${encodeURIComponent(id)}` });
  const cells = {
    title: el("small.title"), under: el("small.under"), state: el("td.c-state"), course: el("td.c-course"),
    score: number("", "c-best"), above: number("", "c-against"), done: number("", "c-updates"),
    when: number("", "c-modified"),
  };
  box.addEventListener("change", () => {
    if (box.checked) choices.chosen.set(id, first.name);
    else choices.chosen.delete(id);
    chosen();
  });
  const element = el("tr", {}, el("td.c-choose", {}, box), el("td.c-run", {}, link, cells.title, cells.under),
    cells.state, cells.course, cells.score, cells.above, cells.done, cells.when);
  element.addEventListener("click", (event) => {
    if (!event.target.closest("a, input, button") && !String(getSelection())) link.click();
  });
  let shown = "";
  return {
    element,
    choose() {
      box.checked = choices.chosen.has(id);
      box.disabled = first.kind !== "run" || (!box.checked && choices.chosen.size >= MOST_COMPARED);
    },
    update(run) {
      this.choose();
      say(cells.when, ago(run.modified));
      say(cells.under, `${run.state} · ${progress(run)} · ${ago(run.modified)}`);
      const now = JSON.stringify({ ...run, modified: 0 });
      if (now === shown) return;
      shown = now;
      showRun(run, link, cells);
    },
  };
}

function showRun(run, link, cells) {
  say(link, run.name);
  say(cells.title, run.problem ?? run.title ?? "");
  cells.title.classList.toggle("bad", Boolean(run.problem));
  fill(cells.state, stateMark(run.state));
  fill(cells.course, spark(run.spark, run.never));
  const best = run.kind === "growth" ? (known(run.best) ? `loss ${digits(run.best)}` : NONE) : fixed(run.best);
  say(cells.score, run.exact || best === NONE ? best : `≈ ${best}`);
  cells.score.title = run.exact ? "" : "From a sample of a long log; open the run for the exact figure.";
  const above = known(run.best) && known(run.never) ? run.best - run.never : null;
  say(cells.above, signed(above));
  cells.above.classList.toggle("good", above > 0);
  say(cells.done, progress(run));
}

function progress(run) {
  if (run.kind === "growth") return known(run.updates) ? `${whole(run.updates)} steps` : NONE;
  return known(run.updates) ? whole(run.updates) + (run.of ? ` of ${whole(run.of)}` : "") : NONE;
}

/** A bar at the bottom of the page while runs are chosen. */
function compareBar(changed) {
  const text = el("span");
  const link = el("a.button", {}, "Compare");
  const clear = () => {
    choices.chosen.clear();
    update();
  };
  const none = el("button.quiet", { type: "button", onclick: clear }, "Clear");
  const element = el("div.bar", { role: "status", hidden: true }, text, link, none);
  function update() {
    const { chosen } = choices;
    element.hidden = !chosen.size;
    say(text, chosen.size === 1 ? "1 run chosen; choose another to compare" : `${chosen.size} runs chosen`);
    link.hidden = chosen.size < 2;
    link.href = `#/compare/${[...chosen.keys()].map(encodeURIComponent).join(",")}`;
    changed();
  }
  return { element, update };
}
