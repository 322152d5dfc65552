/** Small curves within tables and sentences. */

import { svg } from "./dom.js";
import { known } from "./format.js";

const SPARK_WIDTH = 120;
const SPARK_HEIGHT = 30;
const SPARK_EDGE = 3;

/** Return a small curve; `never` is drawn as a dotted line. */
export function spark(values, never = null) {
  const found = values.filter(known);
  const box = svg("svg.spark", { viewBox: `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`, "aria-hidden": "true" });
  if (!found.length) return box;
  const all = known(never) ? [...found, never] : found;
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (i) => SPARK_EDGE + (i * (SPARK_WIDTH - 2 * SPARK_EDGE)) / Math.max(values.length - 1, 1);
  const inside = SPARK_HEIGHT - 2 * SPARK_EDGE;
  const y = (value) => SPARK_EDGE + (1 - (value - low) / (high - low || 1)) * inside;
  if (known(never)) box.append(svg("line.never", { x1: 0, x2: SPARK_WIDTH, y1: y(never), y2: y(never) }));
  const points = values.map((value, i) => (known(value) ? `${x(i).toFixed(1)},${y(value).toFixed(1)}` : null));
  box.append(svg("polyline", { points: points.filter(Boolean).join(" ") }));
  const last = values.findLastIndex(known);
  box.append(svg("circle", { cx: x(last), cy: y(values[last]), r: 2.6 }));
  return box;
}

/** Return ticks on a line from 0 to `end`: when something happened. */
export function ticks(moments, end) {
  const box = svg("svg.ticks", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
  box.append(svg("line.axis", { x1: 0, x2: 100, y1: 9, y2: 9 }));
  for (const moment of moments) {
    const x = (100 * moment) / Math.max(end, 1);
    box.append(svg("line", { x1: x, x2: x, y1: 1, y2: 9 }));
  }
  return box;
}
