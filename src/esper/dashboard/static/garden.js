/** All hosts of a run at one moment, replayed with a slider or followed as they grow. */

import { el, fill, say } from "./dom.js";
import { fixed, known } from "./format.js";
import { frameText, gardenFrames, hostText } from "./frames.js";
import { stageItems } from "./life.js";
import { legend } from "./parts.js";
import { FIRST_SPEED, player } from "./player.js";
import { isStill } from "./theme.js";
import { Tiles } from "./tiles.js";
import { saySentence } from "./words.js";

const HINT = "Point at a host to see what it does; click it to see its life so far.";
const NO_GARDEN = "This run has recorded no garden yet: it appears with the first update.";
const LEAST_HEIGHT = 360;
const AROUND = 330;
const LEAST_PACE = 8;
const MOST_BEHIND = 200;
/** The frame at which each garden was left, by run; null for the newest. */
const leftAt = new Map();

/** Return the view of a run's garden. */
export function gardenView(page, id) {
  const view = new Garden(page, id);
  const { element } = view;
  return { element, refresh: () => view.refresh(), destroy: () => view.destroy(), wants: ["garden", "state"] };
}

class Garden {
  constructor(page, id) {
    Object.assign(this, { page, id, at: 0, isFollowing: true, isPlaying: false, isGone: false, speed: FIRST_SPEED });
    this.frames = gardenFrames(id);
    this.range = [Infinity, -Infinity];
    this.pointed = null;
    this.timer = 0;
    this.pictures = [];
    this.lead = el("p.lead");
    this.info = el("p.info", { role: "status" }, HINT);
    this.fleets = el("div.fleets");
    this.scale = el("p.scale", {}, el("span"), el("i", { "aria-hidden": "true" }), el("span"));
    this.bar = player({
      jump: (index) => this.jump(index), toggle: () => this.toggle(), follow: () => this.jump(Infinity),
      pace: (speed) => (this.speed = speed),
    });
    const keys = el("div.keys", {}, stageLegend(), this.scale);
    this.element = el("section.garden-view", {}, this.lead, this.bar.element, this.info, this.fleets, keys);
  }

  get last() {
    return this.frames.count() - 1;
  }

  /** Look for new frames; the newest are shown one after the other, if the reader follows them. */
  async refresh() {
    const isFirst = this.frames.count() === 0;
    await this.page.about(["garden"]);
    await this.frames.refresh();
    this.element.classList.toggle("bare", this.last < 0);
    if (this.last < 0) return saySentence(this.lead, NO_GARDEN);
    if (!this.pictures.length) this.plant();
    const left = leftAt.get(this.id) ?? null;
    if (isFirst && left !== null) Object.assign(this, { at: left, isFollowing: false });
    if (!this.isFollowing) return this.show(this.at);
    if (isFirst || isStill()) return this.show(this.last);
    return this.play();
  }

  plant() {
    this.pictures = this.frames.fleets().map((fleet, index) => {
      const open = (host) => (location.hash = this.hostAddress(index, host));
      return new Tiles(fleet, (host) => this.point(index, host), open);
    });
    fill(this.fleets, this.pictures.map((picture) => picture.element));
  }

  hostAddress(fleet, host) {
    return `#/run/${encodeURIComponent(this.id)}/host/${fleet}/${host}/${this.at}`;
  }

  async show(index) {
    const wanted = Math.max(0, Math.min(index, this.last));
    this.at = wanted;
    const frame = await this.frames.load(wanted);
    if (!frame || this.at !== wanted || this.isGone) return;
    this.draw(frame);
    saySentence(this.lead, frameText(frame, this.frames.fleets()));
    say(this.scale.firstElementChild, `tiles: score ${fixed(this.range[0], 2)}`);
    say(this.scale.lastElementChild, fixed(this.range[1], 2));
    this.bar.update(this, this.frames.count(), frame);
    if (this.pointed) this.point(...this.pointed);
  }

  draw(frame) {
    for (const { scores } of frame.fleets) {
      for (const score of scores.filter(known)) {
        this.range = [Math.min(this.range[0], score), Math.max(this.range[1], score)];
      }
    }
    const fleets = this.frames.fleets();
    const room = Math.max(LEAST_HEIGHT, innerHeight - AROUND);
    const sizes = fleets.map(({ hosts, slots }) => hosts * slots.length);
    const all = sizes.reduce((sum, size) => sum + size, 0);
    frame.fleets.forEach((part, i) => this.pictures[i]?.draw(part, this.range, Math.max(90, (room * sizes[i]) / all)));
  }

  /** Say what a host does; null for none. */
  point(fleet, host) {
    this.pointed = host === null ? null : [fleet, host];
    const frame = this.frames.at(this.at);
    if (host === null || !frame) return say(this.info, HINT);
    const link = el("a", { href: this.hostAddress(fleet, host) }, "Its life");
    return fill(this.info, hostText(frame, this.frames.fleets(), fleet, host), " ", link);
  }

  jump(index) {
    this.stop();
    this.isFollowing = index >= this.last;
    this.show(index);
  }

  toggle() {
    if (this.isPlaying && !this.isFollowing) return this.stop();
    this.stop();
    this.isFollowing = false;
    if (this.at >= this.last) this.at = -1;
    return this.play();
  }

  play() {
    if (this.isPlaying) return;
    this.isPlaying = true;
    this.timer = setTimeout(() => this.advance(), 0);
  }

  async advance() {
    const left = this.last - this.at;
    if (left <= 0) {
      this.isFollowing = true;
      return this.stop();
    }
    await this.show(this.isFollowing && left > MOST_BEHIND ? this.last - MOST_BEHIND : this.at + 1);
    // What is new is shown within two seconds.
    const pace = this.isFollowing ? Math.max(LEAST_PACE, left / 2) : this.speed;
    if (this.isPlaying) this.timer = setTimeout(() => this.advance(), 1000 / pace);
    return null;
  }

  stop() {
    clearTimeout(this.timer);
    this.isPlaying = false;
    this.bar.update(this, this.frames.count(), this.frames.at(this.at));
  }

  destroy() {
    this.isGone = true;
    this.stop();
    leftAt.set(this.id, this.isFollowing ? null : this.at);
    this.pictures.forEach((picture) => picture.destroy());
  }
}

function stageLegend() {
  const list = legend(stageItems());
  const extra = (style, letter, text) => {
    return el("li", {}, el(`span.swatch.area.${style}`, { "aria-hidden": "true" }, letter), text);
  };
  list.append(extra("twin", "t", "twin: small letter, cut corner"), extra("alpha", "", "height of color: alpha"));
  return list;
}
