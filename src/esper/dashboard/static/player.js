/** Controls of a replay: play, step, jump, speed, and back to the newest. */

import { el, fill, icon, mark, say } from "./dom.js";
import { whole } from "./format.js";

const PLAY = "M7 4l13 8-13 8z";
const PAUSE = "M8 4v16M16 4v16";
const SPEEDS = [2, 4, 8, 16];
/** Decisions per second at first. */
export const FIRST_SPEED = 4;

/** Return the controls as {element, update}; they call `jump(index)`, `toggle()`, `follow()` and `pace(speed)`. */
export function player({ jump, toggle, follow, pace }) {
  const play = el("button.play", { type: "button", onclick: toggle });
  const slider = el("input", { type: "range", min: 0, max: 0, step: 1, "aria-label": "Decision" });
  const step = (by, sign, label) => {
    const onclick = () => jump(Number(slider.value) + by);
    return el("button.quiet", { type: "button", "aria-label": label, onclick }, sign);
  };
  const newest = el("button.quiet", { type: "button", onclick: follow }, "newest");
  const speeds = SPEEDS.map((value) => el("option", { value, selected: value === FIRST_SPEED }, `${value}/s`));
  const speed = el("select", { "aria-label": "Decisions per second" }, speeds);
  const moment = el("output");
  slider.addEventListener("input", () => jump(Number(slider.value)));
  speed.addEventListener("change", () => pace(Number(speed.value)));
  const element = el("div.player", { role: "group", "aria-label": "Replay" }, play, step(-1, "‹", "One decision back"),
    slider, step(1, "›", "One decision on"), moment, speed, newest);
  function update({ at, isPlaying, isFollowing }, count, frame) {
    slider.max = Math.max(0, count - 1);
    slider.value = at;
    const label = isPlaying && !isFollowing ? "Pause" : "Play";
    if (play.getAttribute("aria-label") !== label) fill(play, icon(label === "Pause" ? PAUSE : PLAY));
    mark(play, "aria-label", label);
    mark(newest, "aria-pressed", String(isFollowing));
    say(moment, frame ? `update ${whole(frame.update)} · decision ${whole(frame.decision)}` : "");
    mark(slider, "aria-valuetext", moment.textContent);
  }
  return { element, update };
}
