/** Answers of the server, or those that a report holds; and the stream of changes. */

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 30000;
let embedded = null;

/** Read answers from the page itself instead of the server. */
export function embed(paths) {
  embedded = paths;
}

/** Whether an answer can be had: of a report, only what it holds. */
export function holds(path) {
  return embedded === null || Object.hasOwn(embedded, path);
}

/** Return the answer at a path, or throw an error whose message is a sentence for the page. */
export async function get(path) {
  if (embedded !== null) {
    if (Object.hasOwn(embedded, path)) return embedded[path];
    throw new Error("This report does not hold that part of the run.");
  }
  let answer;
  try {
    answer = await fetch(path.slice(1), { headers: { Accept: "application/json" } });
  } catch {
    throw new Error("The server does not answer: is esper ui still running?");
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  throw Object.assign(new Error(body?.problem ?? `The server answered with an error (${answer.status}).`), {
    status: answer.status,
  });
}

/** Return the path of a run's answer. */
export function ofRun(id, ...parts) {
  return ["/api/runs", encodeURIComponent(id), ...parts].join("/");
}

/**
 * Changes of a run, or of the list of runs, until `close` is called; reconnects by itself.
 *
 * `hear(what)` gets a list of what changed; after a lost connection it gets null, which means anything.
 * `tell(isConnected)` is called when the connection is made or lost. While the page is hidden, nothing is open.
 */
export class Changes {
  constructor(id, hear, tell) {
    this.address = id === null ? "api/events" : `api/events?run=${encodeURIComponent(id)}`;
    Object.assign(this, { hear, tell, source: null, wait: FIRST_WAIT, timer: 0, hasMissed: false });
    this.listeners = [[document, "visibilitychange"], [window, "online"]];
    this.look = () => (document.hidden ? this.shut() : this.open());
    for (const [target, name] of this.listeners) target.addEventListener(name, this.look);
    this.open();
  }

  open() {
    clearTimeout(this.timer);
    this.hasMissed ||= document.hidden;
    if (this.source || document.hidden) return;
    this.source = new EventSource(this.address);
    this.source.addEventListener("open", () => this.opened());
    this.source.addEventListener("error", () => this.lost());
    this.source.addEventListener("change", (event) => this.hear(JSON.parse(event.data).what ?? null));
  }

  opened() {
    this.wait = FIRST_WAIT;
    this.tell(true);
    if (this.hasMissed) this.hear(null);
    this.hasMissed = false;
  }

  lost() {
    this.shut();
    this.tell(false);
    this.timer = setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(2 * this.wait, LONGEST_WAIT);
  }

  shut() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.hasMissed = true;
  }

  close() {
    this.shut();
    for (const [target, name] of this.listeners) target.removeEventListener(name, this.look);
  }
}
