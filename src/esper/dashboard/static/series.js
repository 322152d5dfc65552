/** What is drawn in which color: stages, ops and series, each with a letter or a pattern besides its color. */

export const STAGES = {
  DORMANT: "D", GERMINATED: "G", TRAINING: "T", BLENDING: "B", HOLDING: "H",
  FOSSILIZED: "F", PRUNED: "P", EMBARGOED: "E", RESETTING: "R",
};
export const OPS = { WAIT: "W", GERMINATE: "G", SET_ALPHA_TARGET: "S", PRUNE: "P", FOSSILIZE: "F", ADVANCE: "A" };
export const STAGE_OF = Object.fromEntries(Object.entries(STAGES).map(([name, letter]) => [letter, name]));
export const OP_OF = Object.fromEntries(Object.entries(OPS).map(([name, letter]) => [letter, name]));
/** Stages in which a slot holds no seed; their cells stay empty. */
export const EMPTY = new Set(["D", "E", "R"]);
const SERIES = 6;
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

/** Return the name of the color of a series. */
export function seriesColor(index) {
  return `series-${index % SERIES}`;
}

/** Return the dashes of a series: after six colors the next pattern begins. */
export function seriesDash(index) {
  return DASHES[Math.floor(index / SERIES) % DASHES.length];
}

/** Return the letter of an op; "?" for one that this page does not know. */
export function opLetter(name) {
  return OPS[name] ?? "?";
}

/** Return the name of the color of an op. */
export function opColor(name) {
  return name in OPS ? `op-${OPS[name]}` : "quiet";
}
