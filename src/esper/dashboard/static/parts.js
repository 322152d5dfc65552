/** Parts that several views share: head of a run, key figures, tables of facts, legends. */

import { el, fill, folded, icon, say } from "./dom.js";
import { term } from "./words.js";
import { NONE } from "./format.js";

const STATE_TEXTS = {
  running: "is being trained", stopped: "stopped before its end", done: "has ended", damaged: "cannot be read",
};
const COPY = "M8 8h11v11H8zM5 15V5h10";

/** Return a run's state as a dot with its word. */
export function stateMark(state) {
  const title = state in STATE_TEXTS ? `This run ${STATE_TEXTS[state]}.` : null;
  return el("span.state", { title, "data-state": state }, el("i", { "aria-hidden": "true" }), state);
}

/** Return a row of key figures as {element, update}; `update` takes [label, value, remark] each. */
export function figures() {
  const element = el("dl.figures");
  let shape = "";
  return {
    element,
    update(items) {
      const next = items.map(([name]) => name).join("|");
      if (next !== shape) {
        const figure = ([name]) => el("div", {}, el("dt", {}, label(name)), el("dd", {}, el("b"), el("small")));
        fill(element, items.map(figure));
        shape = next;
      }
      items.forEach(([, value, remark], i) => {
        const place = element.children[i].lastElementChild;
        say(place.firstElementChild, value ?? NONE);
        say(place.lastElementChild, remark ?? "");
      });
    },
  };
}

function label(name) {
  const parts = name.split(/\b(J|growth|never)\b/);
  return parts.map((part) => (["J", "growth", "never"].includes(part) ? term(part) : part));
}

/** Return a list of names and texts. */
export function factList(facts) {
  return el("dl.facts", {}, facts.map(([name, text]) => [el("dt", {}, name), el("dd", {}, String(text ?? NONE))]));
}

/** Return a record as indented JSON, folded away. */
export function record(title, content) {
  return folded(title, el("pre", { tabindex: "0" }, JSON.stringify(content, null, 2)));
}

/** Return a command with a button that copies it. */
export function command(text) {
  const said = el("span", { role: "status" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say(said, "copied");
    } catch {
      say(said, "select it to copy"); // browsers forbid copying on pages without https
    }
  };
  const options = { type: "button", "aria-label": "Copy the command", title: "Copy", onclick: copy };
  const button = el("button.quiet", options, icon(COPY));
  return el("p.command", {}, el("code", {}, text), button, said);
}

/** Return a legend of colored letters: [letter, color, label, about] each. */
export function legend(items) {
  return el("ul.legend", {}, items.map(([letter, color, name, about]) => {
    const swatch = el("span.swatch.area", { "aria-hidden": "true" }, letter);
    swatch.style.setProperty("--c", `var(--${color})`);
    swatch.style.color = `var(--on-${color})`;
    return el("li", { title: about }, swatch, name);
  }));
}

/** Return a place for what went wrong, as {element, show}. */
export function problemPlace() {
  const element = el("div.problem", { role: "alert", hidden: true });
  return {
    element,
    show(text) {
      element.hidden = !text;
      say(element, text ?? "");
    },
  };
}

/** Return a cell of a table for a number, with a further class. */
export function number(text, style = "") {
  return el(style ? `td.number.${style}` : "td.number", {}, text);
}

/** Return the head of a table: names, those that start with "#" for numbers. */
export function heads(names) {
  return el("thead", {}, el("tr", {}, names.map((name) => {
    const isNumber = typeof name === "string" && name.startsWith("#");
    const text = isNumber ? name.slice(1) : name;
    return el(isNumber ? "th.number" : "th", { scope: "col" }, text ? label(text) : el("span.unseen", {}, "choose"));
  })));
}
