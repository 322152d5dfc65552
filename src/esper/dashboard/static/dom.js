/** Elements of a page. Text is always text: no function here or elsewhere reads markup. */

const SVG = "http://www.w3.org/2000/svg";
const NOTHING = new Set([null, undefined, false]);

/** Return an HTML element; `tag` may add classes, as in "p.quiet". */
export function el(tag, options = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return build(document.createElement(name), classes, options, children);
}

/** Return an SVG element, written as for `el`. */
export function svg(tag, options = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  return build(document.createElementNS(SVG, name), classes, options, children);
}

function build(element, classes, options, children) {
  element.classList.add(...classes);
  for (const [name, value] of Object.entries(options)) {
    if (NOTHING.has(value)) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...shown(children));
  return element;
}

function shown(children) {
  return children.flat(Infinity).filter((child) => !NOTHING.has(child));
}

/** Replace all children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...shown(children));
  return element;
}

/** Change a text, and only if it differs, so that selections and screen readers are left in peace. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  return element;
}

/** Set or remove an attribute, only if it differs. */
export function mark(element, name, value) {
  const text = NOTHING.has(value) ? null : value === true ? "" : String(value);
  if (element.getAttribute(name) === text) return;
  if (text === null) element.removeAttribute(name);
  else element.setAttribute(name, text);
}

/**
 * Keep one child per item, in the order of the items; children are made once and changed afterwards.
 *
 * `parts` is a Map from keys to {element, update}, kept by the caller; `make(item)` returns a new part.
 */
export function keep(parent, parts, items, key, make) {
  const focused = document.activeElement;
  const keys = new Set(items.map(key));
  for (const [name, part] of parts) {
    if (keys.has(name)) continue;
    part.element.remove();
    part.destroy?.();
    parts.delete(name);
  }
  let next = parent.firstElementChild;
  for (const item of items) {
    if (!parts.has(key(item))) parts.set(key(item), make(item));
    const part = parts.get(key(item));
    part.update(item);
    if (part.element === next) next = next.nextElementSibling;
    else parent.insertBefore(part.element, next);
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

/** Return a drawing of 24 × 24 units in the color of the text; it says nothing by itself. */
export function icon(path) {
  return svg("svg.icon", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: path }));
}

/** Return a folded part of the page. */
export function folded(title, ...content) {
  return el("details.fold", {}, el("summary", {}, title), el("div.inside", {}, ...content));
}

/** Return a folded part of the page that opens for print. */
export function printed(title, ...content) {
  const fold = folded(title, ...content);
  fold.classList.add("prints");
  return fold;
}

/** Return a box that scrolls sideways when its content is too wide, by keyboard too. */
export function wide(label, ...content) {
  return el("div.wide", { role: "region", tabindex: "0", "aria-label": label }, ...content);
}
