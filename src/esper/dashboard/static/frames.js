/** Frames of a garden: fetched in pages, kept in a bounded number, and read. */

import { get, ofRun } from "./api.js";
import { counted, fixed, spoken, whole } from "./format.js";
import { EMPTY, OP_OF, STAGE_OF, STAGES } from "./series.js";

const PAGE = 48;
const MOST_PAGES = 12;
const LOUDEST = 9;
const MOST_TRIES = 8;
/** How many frames back the beginning of a life is looked for. */
const FURTHEST = 480;

/** Return the frames of a run's garden: `count()`, `fleets()`, `at(index)`, `load(index)`, `refresh()`. */
export function gardenFrames(id) {
  const pages = new Map();
  let about = { fleets: [], frames: 0 };

  /** Ask for what is missing of a page; a large answer may stop short of its end. */
  async function fetchPage(number) {
    const have = pages.get(number) ?? [];
    const from = number * PAGE + have.length;
    const found = await get(`${ofRun(id, "garden")}?from=${from}&count=${Math.max(1, PAGE - have.length)}`);
    if (found.frames < about.frames) pages.clear();
    about = { fleets: found.fleets, frames: found.frames };
    pages.delete(number);
    pages.set(number, [...have, ...found.shown].slice(0, PAGE));
    while (pages.size > MOST_PAGES) pages.delete(pages.keys().next().value);
    return found.shown.length;
  }
  const at = (index) => pages.get(Math.floor(index / PAGE))?.[index % PAGE] ?? null;
  async function load(index) {
    const number = Math.floor(index / PAGE);
    for (let tries = 0; tries < MOST_TRIES && !at(index) && (await fetchPage(number)); tries++);
    return at(index);
  }
  /** Ask how many frames there are now, and for the newest. */
  async function refresh() {
    await fetchPage(Math.max(0, Math.floor((about.frames - 1) / PAGE)));
    if (about.frames) await load(about.frames - 1);
  }
  return { count: () => about.frames, fleets: () => about.fleets, at, load, refresh };
}

/** The slots of one host in a frame: letter of the stage, whether it is a twin, alpha from 0 to 1. */
function slotsOf(frame, fleet, host, count) {
  const { cells } = frame.fleets[fleet];
  return Array.from({ length: count }, (_, slot) => {
    const at = 2 * (host * count + slot);
    const letter = cells.charAt(at).toUpperCase();
    return { letter, isTwin: cells.charAt(at) !== letter, alpha: Number(cells.charAt(at + 1)) / LOUDEST };
  });
}

/** Say what one host is doing. */
export function hostText(frame, fleets, fleet, host) {
  const here = frame.fleets[fleet];
  const names = fleets[fleet].slots;
  const op = spoken(OP_OF[here.ops.charAt(host)] ?? "nothing known");
  const slots = slotsOf(frame, fleet, host, names.length).map((slot, i) => `${names[i]} ${slotText(slot)}`);
  return `Host ${host}: score ${fixed(here.scores[host])}; chooses ${op}; ${slots.join(", ")}.`;
}

function slotText({ letter, isTwin, alpha }) {
  const stage = spoken(STAGE_OF[letter] ?? "unknown");
  return EMPTY.has(letter) ? stage : `${stage}${isTwin ? " twin" : ""} at alpha ${fixed(alpha, 1)}`;
}

/** Say in one sentence what a frame shows. */
export function frameText(frame, fleets) {
  const counts = new Map();
  for (const { cells } of frame.fleets) {
    for (let i = 0; i < cells.length; i += 2) {
      const letter = cells.charAt(i).toUpperCase();
      counts.set(letter, (counts.get(letter) ?? 0) + 1);
    }
  }
  const hosts = fleets.reduce((sum, fleet) => sum + fleet.hosts, 0);
  const slots = [...counts.values()].reduce((sum, count) => sum + count, 0);
  const seeds = Object.values(STAGES).filter((letter) => !EMPTY.has(letter) && counts.get(letter));
  const said = seeds.map((letter) => `${whole(counts.get(letter))} ${spoken(STAGE_OF[letter])}`);
  const held = said.length ? `seeds in them: ${said.join(", ")}` : "no seeds yet";
  const when = `at update ${whole(frame.update)}, decision ${whole(frame.decision)}`;
  return `${counted(hosts, "host")} with ${counted(slots, "slot")} ${when}; ${held}.`;
}

/**
 * Return the life of one host up to a frame, as {life, isWhole}: moments {op, score, slots, frame…}, oldest first.
 *
 * A moment shows its slots before its op.
 */
export async function lifeAround(frames, fleet, host, index) {
  const names = frames.fleets()[fleet].slots;
  const life = [];
  for (let at = index; at >= 0 && at > index - FURTHEST; at--) {
    const frame = await frames.load(at);
    if (!frame?.fleets[fleet]) break;
    life.unshift({ ...momentOf(frame, fleet, host, names), frame: at });
    if (frame.fleets[fleet].born.includes(host)) return { life, isWhole: true };
  }
  return { life, isWhole: false };
}

function momentOf(frame, fleet, host, names) {
  const { ops, scores } = frame.fleets[fleet];
  const slots = slotsOf(frame, fleet, host, names.length).map(({ letter, isTwin, alpha }, i) => {
    const blueprint = EMPTY.has(letter) ? null : isTwin ? "twin" : "";
    return { name: names[i], stage: STAGE_OF[letter] ?? "DORMANT", alpha, blueprint };
  });
  const op = OP_OF[ops.charAt(host)] ?? "?";
  return { update: frame.update, decision: frame.decision, op, score: scores[host] ?? null, slots };
}
