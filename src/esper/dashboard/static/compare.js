/** Several runs over one another: J against updates. */

import { el, fill, wide } from "./dom.js";
import { get, ofRun } from "./api.js";
import { chart } from "./charts.js";
import { fixed, signed, known, whole } from "./format.js";
import { heads, number } from "./parts.js";
import { seriesColor, seriesDash } from "./series.js";
import { saySentence } from "./words.js";

/** Return the view that compares runs. */
export function compareView(page, ids) {
  const lead = el("p.lead");
  const curve = chart({ title: "J", height: 380, format: fixed });
  const body = el("tbody");
  const table = el("table", {}, heads(["run", "#best J", "#last J", "#against never", "#updates"]), body);
  const heading = el("h1", { tabindex: "-1" }, "Compare runs");
  const element = el("section", {}, heading, lead, el("div.card", {}, curve.element), wide("Compared runs", table));

  async function refresh() {
    const runs = await Promise.all(ids.map(async (id) => {
      const [about, curves] = await Promise.all([get(ofRun(id)), get(`${ofRun(id, "curves")}?points=600`)]);
      return { id, about, curves, ...outcome(about, curves) };
    }));
    page.title("Compare", "Compare");
    page.live(runs.some(({ about }) => about.state === "running") ? "running" : "ended");
    curve.update(together(runs));
    const sorted = [...runs].sort((a, b) => (b.best ?? -Infinity) - (a.best ?? -Infinity));
    saySentence(lead, comparison(sorted));
    fill(body, sorted.map((run) => comparedRow(run, runs.indexOf(run))));
  }
  return { element, refresh, destroy: () => curve.destroy(), wants: ["runs", "reports", "state"] };
}

function outcome(about, { high, columns }) {
  const found = high.objective.filter(known);
  const best = found.length ? Math.max(...found) : null;
  return { best, last: columns.objective.findLast(known) ?? null, never: about.never };
}

function comparison([first, second]) {
  if (!known(first?.best)) return "None of these runs has finished an episode yet.";
  const lead = known(second?.best) ? `, ${fixed(first.best - second.best)} above the next` : "";
  return `${first.about.name} reached the highest J, ${fixed(first.best)}${lead}.`;
}

/** Bring the curves of all runs to one x axis. */
function together(runs) {
  const x = [...new Set(runs.flatMap(({ curves }) => curves.x))].sort((a, b) => a - b);
  const place = new Map(x.map((update, i) => [update, i]));
  const series = runs.map(({ about, curves }, index) => {
    const values = new Array(x.length).fill(null);
    curves.x.forEach((update, i) => (values[place.get(update)] = curves.columns.objective[i]));
    return { label: about.name, values, color: seriesColor(index), dash: seriesDash(index) };
  });
  return { x, series };
}

function comparedRow({ id, about, best, last, never, curves }, index) {
  const swatch = el("span.swatch", { "aria-hidden": "true" });
  swatch.style.setProperty("--c", `var(--${seriesColor(index)})`);
  return el("tr", {}, el("td", {}, swatch, el("a", { href: `#/run/${encodeURIComponent(id)}` }, about.name)),
    number(fixed(best)), number(fixed(last)), number(known(never) && known(best) ? signed(best - never) : "–"),
    number(whole(curves.updates)));
}
