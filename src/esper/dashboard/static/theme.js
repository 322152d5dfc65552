/** Light and dark: follow the system or the reader's choice, and give the colors of style.css to canvases. */

import { el, fill, icon } from "./dom.js";
import { onPrint } from "./print.js";

const THEMES = ["system", "light", "dark"];
const ICONS = {
  system: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  light: "M12 7a5 5 0 1 0 0 10a5 5 0 1 0 0-10M12 1v2M12 21v2M1 12h2M21 12h2M4 4l2 2M18 18l2 2M4 20l2-2M18 6l2-2",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5Z",
};
const STORED = "esper-theme";
const listeners = new Set();
const resolved = new Map();
let isForPaper = false;

/** Call a function whenever colors change; returns a function that stops this. */
export function onColors(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Return a color of style.css as canvases understand it, such as color("ink"). */
export function color(name) {
  if (!resolved.has(name)) {
    const probe = document.body.appendChild(el("span", { hidden: true }));
    probe.style.color = `var(--${name})`;
    resolved.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return resolved.get(name);
}

/** Return a color of style.css, thinned. */
export function thin(name, alpha) {
  return color(name).replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
}

function changed() {
  resolved.clear();
  for (const listener of [...listeners]) listener();
}

function stored() {
  try {
    const choice = localStorage.getItem(STORED);
    return THEMES.includes(choice) ? choice : "system";
  } catch {
    return "system"; // storage may be forbidden, as in some frames and for files
  }
}

function store(choice) {
  try {
    localStorage.setItem(STORED, choice);
  } catch {
    // The choice lasts as long as the page.
  }
}

function apply(choice) {
  const root = document.documentElement;
  if (isForPaper || choice !== "system") root.dataset.theme = isForPaper ? "light" : choice;
  else delete root.dataset.theme;
  changed();
}

/** Return the button that changes the theme, and apply the stored one. */
export function themeSwitch() {
  let choice = stored();
  const button = el("button.quiet.switch", { type: "button", onclick: next });
  function next() {
    choice = THEMES[(THEMES.indexOf(choice) + 1) % THEMES.length];
    store(choice);
    show();
  }
  function show() {
    fill(button, icon(ICONS[choice]), el("span.label", {}, choice === "system" ? "auto" : choice));
    button.setAttribute("aria-label", `Colors: ${choice === "system" ? "auto, as the system" : choice}. Change.`);
    button.title = button.getAttribute("aria-label");
    apply(choice);
  }
  show();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  onPrint((now) => {
    isForPaper = now;
    apply(choice);
  });
  return button;
}

/** Whether the reader asked for less motion. */
export function isStill() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}
