/** Words explained where they stand: a dotted underline, and a note by mouse, touch or keyboard. */

import { el, fill } from "./dom.js";
import { get } from "./api.js";

let meanings = {};
let note = null;
let asked = null;

/** Load the explanations; without them, words stand alone. */
export async function loadWords() {
  try {
    meanings = await get("/api/words");
  } catch {
    meanings = {};
  }
}

/** Return the explanation of a word; empty if there is none. */
export function meaning(word) {
  const text = meanings[word];
  return typeof text === "string" ? text : "";
}

/** Return what a stage means, or nothing. */
export function stageMeaning(name) {
  return meanings.stages?.[name] ?? "";
}

/** Return what an op does, or nothing. */
export function opMeaning(name) {
  return meanings.ops?.[name] ?? "";
}

/** Return a word that explains itself; `key` names it in the explanations, if it differs. */
export function term(word, key = word) {
  return meaning(key) ? explained(word, meaning(key)) : el("span", {}, word);
}

function explained(word, text) {
  const button = el("button.term", { type: "button", "aria-expanded": "false" }, word);
  button.addEventListener("click", () => (asked === button ? hideNote() : showNote(button, text, true)));
  button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && !asked && showNote(button, text));
  button.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && asked !== button && hideNote());
  button.addEventListener("blur", hideNote);
  button.addEventListener("keydown", (event) => event.key === "Escape" && hideNote());
  return button;
}

function showNote(button, text, byRequest = false) {
  hideNote();
  note = el("div.note", { role: "tooltip", id: "note" }, text);
  document.body.append(note);
  asked = byRequest ? button : null;
  button.setAttribute("aria-expanded", "true");
  button.setAttribute("aria-describedby", "note");
  const place = button.getBoundingClientRect();
  const width = Math.min(340, innerWidth - 24);
  const furthest = document.documentElement.clientWidth - width - 12;
  note.style.width = `${width}px`;
  note.style.left = `${Math.max(12, Math.min(place.left, furthest)) + scrollX}px`;
  const below = place.bottom + note.offsetHeight + 12 < innerHeight;
  note.style.top = `${(below ? place.bottom + 8 : place.top - note.offsetHeight - 8) + scrollY}px`;
}

/** Remove the note that is shown, if there is one. */
export function hideNote() {
  const button = document.querySelector("[aria-describedby=note]");
  button?.setAttribute("aria-expanded", "false");
  button?.removeAttribute("aria-describedby");
  note?.remove();
  note = asked = null;
}

/** Return a sentence with J and growth explained where they first stand. */
export function sentence(text) {
  const rest = new Map([["J", "J"], ["growth", "growth"], ["never growing", "never"], ["never grows", "never"]]);
  const parts = String(text ?? "").split(/\b(J|growth|never growing|never grows)\b/);
  return parts.map((part) => {
    if (!rest.has(part)) return part;
    const key = rest.get(part);
    for (const [word, name] of rest) if (name === key) rest.delete(word);
    return term(part, key);
  });
}

/** Show a sentence, and leave it alone if it is shown already. */
export function saySentence(element, text) {
  if (element.dataset.said === text) return;
  element.dataset.said = text;
  fill(element, ...sentence(text));
}
