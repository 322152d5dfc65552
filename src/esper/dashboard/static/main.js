/** The page of esper ui: its head, its addresses, and what it does when something changes. */

import { el, fill, icon, mark, say } from "./dom.js";
import { Changes, get, ofRun } from "./api.js";
import { compareView } from "./compare.js";
import { percent } from "./format.js";
import { frontierView } from "./frontier.js";
import { gardenView } from "./garden.js";
import { growthView } from "./growth.js";
import { lifeView } from "./life.js";
import { hostView, livesView } from "./lives.js";
import { problemPlace, stateMark } from "./parts.js";
import { runsView } from "./runs.js";
import { runView } from "./run.js";
import { themeSwitch } from "./theme.js";
import { hideNote, loadWords } from "./words.js";

const SPROUT = "M12 22v-9M12 14c0-5-3.5-8-9-8 0 5 3.5 8 9 8Zm0-3c0-5 3.5-8 9-8 0 5-3.5 8-9 8Z";
/** Milliseconds in which several changes become one refresh. */
const GATHERING = 300;
const TABS = {
  run: ["Run", ""], garden: ["Garden", "/garden"], lives: ["Lives", "/lives"], frontier: ["Frontier", "/frontier"],
  growth: ["Growth", ""],
};
/** Views of one run by the part of the address behind its id: the tab they belong to, and what makes them. */
const VIEWS = {
  "": ["run", (page, id) => runView(page, id)],
  garden: ["garden", (page, id) => gardenView(page, id)],
  host: ["garden", (page, id, numbers) => hostView(page, id, ...numbers)],
  lives: ["lives", (page, id) => livesView(page, id)],
  life: ["lives", (page, id, numbers) => lifeView(page, id, numbers[0])],
  frontier: ["frontier", (page, id) => frontierView(page, id)],
};
const BADGES = { live: "live", ended: "ended", idle: "no run is live", lost: "connection lost" };

/** Find what an address asks for: {tab, id, make}; nothing if there is no such page. */
function route(hash) {
  const [kind = "", first, view = "", ...rest] = hash.replace(/^#?\/?/, "").split("/");
  const id = decoded(first ?? "");
  if (!kind) return { tab: "", id: null, make: (page) => runsView(page) };
  const ids = (first ?? "").split(",").map(decoded);
  if (kind === "compare") return { tab: "", id: null, make: (page) => compareView(page, ids) };
  if (kind === "growth") return { tab: "growth", id, make: (page) => growthView(page, id) };
  if (kind !== "run" || !id || !Object.hasOwn(VIEWS, view)) return null;
  const [tab, make] = VIEWS[view];
  return { tab, id, make: (page) => make(page, id, rest.map(Number)) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The head of one run, kept while the reader goes from view to view. */
function runHead() {
  const name = el("h1", { tabindex: "-1" });
  const about = el("span.about");
  const tabs = el("nav.tabs", { "aria-label": "Views of this run" });
  const problem = problemPlace();
  const reading = el("p.quiet", { hidden: true });
  const crumbs = el("p.crumbs", {}, el("a", { href: "#/" }, "Runs"), " ›");
  const element = el("div.run-head", {}, crumbs, el("div.title-line", {}, name, about), tabs, reading, problem.element);
  let shown = "";
  function update(run, tab) {
    problem.show(run.problem);
    reading.hidden = run.reading >= 1;
    say(reading, `The log is being read: ${percent(run.reading)}.`);
    const now = JSON.stringify([run.name, run.title, run.state, run.views, tab]);
    if (now === shown) return;
    shown = now;
    say(name, run.name);
    fill(about, run.title, " ", stateMark(run.state));
    const focused = [...tabs.children].indexOf(document.activeElement);
    fill(tabs, run.views.length > 1 ? run.views.map((view) => tabLink(run, view, tab)) : []);
    tabs.children[focused]?.focus();
  }
  return { element, update };
}

function tabLink(run, view, tab) {
  return el("a", { href: viewAddress(run, view), "aria-current": view === tab ? "page" : null }, TABS[view][0]);
}

function viewAddress({ kind, id }, view) {
  return `#/${kind}/${encodeURIComponent(id)}${TABS[view][1]}`;
}

/** The page: shows what the address asks for, and keeps it up to date. */
class Application {
  constructor() {
    this.badge = el("span.badge", { role: "status" });
    this.folder = el("span.folder");
    this.problem = problemPlace();
    this.place = el("div.place");
    this.main = el("main", { tabindex: "-1" }, this.problem.element, this.place);
    this.now = null;
    this.scrolled = new Map();
    const home = el("a.home", { href: "#/", "aria-label": "Esper: all runs" }, icon(SPROUT), el("b", {}, "Esper"));
    const skip = el("button.skip", { type: "button", onclick: () => this.main.focus() }, "Skip to the content");
    const top = el("header.top", {}, home, this.folder, el("span.space"), this.badge, themeSwitch());
    document.body.append(skip, top, this.main);
    addEventListener("hashchange", () => this.show());
  }

  /** Show the view that the address asks for. */
  async show() {
    const before = this.leave();
    const hash = location.hash || "#/";
    const found = route(hash);
    this.problem.show(found ? "" : "There is no such page: go back to the list of runs.");
    if (!found) return fill(this.place);
    const here = { ...found, hash, about: null, what: [], isBusy: false, isStale: false, timer: 0 };
    Object.assign(here, { state: "", isLost: false });
    here.head = found.id === null ? null : before?.id === found.id ? before.head : runHead();
    this.now = here;
    here.view = found.make(this.pageOf(here));
    fill(this.place, here.head?.element, here.view.element);
    this.listen(here); // before the first answers, so that no change between them and the stream is missed
    await this.refresh(here, null);
    if (this.now !== here) return null;
    scrollTo(0, this.scrolled.get(hash) ?? 0);
    if (before) this.place.querySelector("h1")?.focus({ preventScroll: true });
    return null;
  }

  listen(here) {
    const tell = (isConnected) => {
      here.isLost = !isConnected;
      if (this.now === here) this.showBadge(here);
    };
    here.stream = new Changes(here.id, (what) => this.changed(here, what), tell);
  }

  /** Leave the view that is shown, and return it. */
  leave() {
    const before = this.now;
    if (before) this.scrolled.set(before.hash, scrollY);
    clearTimeout(before?.timer);
    before?.stream?.close();
    before?.view.destroy();
    this.now = null;
    hideNote();
    return before;
  }

  /** What views may ask of the page. */
  pageOf(here) {
    return {
      refresh: () => this.refresh(here, null),
      title: (name, where) => this.title(name, where),
      live: (state) => this.ended(here, state),
      about: (what) => this.about(here, what),
      go: (view) => this.now === here && location.replace(viewAddress(here.about, view)),
    };
  }

  title(name, where = name) {
    document.title = `${name} · Esper`;
    say(this.folder, where);
  }

  /** Return what a run is about, asked anew unless only its garden changed. */
  async about(here, what) {
    if (!here.about || what?.some((part) => part !== "garden") || !what) here.about = await get(ofRun(here.id));
    if (this.now === here) {
      here.head.update(here.about, here.tab);
      this.title(here.about.name, "");
      this.ended(here, here.about.state);
    }
    return here.about;
  }

  ended(here, state) {
    here.state = state;
    this.showBadge(here);
  }

  showBadge({ isLost, state }) {
    if (!isLost && !state) return; // nothing is known yet
    const found = isLost ? "lost" : state === "running" ? "live" : state === "idle" ? "idle" : "ended";
    mark(this.badge, "data-state", found);
    say(this.badge, BADGES[found]);
  }

  /** Refresh soon, if the view shows what has changed; null is anything. */
  changed(here, what) {
    if (this.now !== here || (what && !what.some((part) => here.view.wants.includes(part)))) return;
    here.what = what && here.what ? [...new Set([...here.what, ...what])] : null;
    clearTimeout(here.timer);
    here.timer = setTimeout(() => this.refresh(here, here.what), GATHERING);
  }

  /** Let a view show what is new; one refresh follows the other. */
  async refresh(here, what) {
    if (here.isBusy) {
      here.isStale = true;
      return;
    }
    here.isBusy = true;
    here.what = [];
    try {
      await here.view.refresh(what);
      if (this.now === here) this.problem.show("");
    } catch (error) {
      if (this.now === here) this.problem.show(error.message);
    }
    here.isBusy = false;
    if (here.isStale && this.now === here) {
      here.isStale = false;
      this.refresh(here, null); // not awaited: whoever waits for the first has something to show
    }
  }
}

await loadWords();
await new Application().show();
