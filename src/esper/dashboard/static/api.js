/** Answers of the server, or those that a report holds; and the stream of changes. */

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 30000;
let embedded = null;

/** Read answers from the page itself instead of the server. */
export function embed(paths) {
  embedded = paths;
}

/** Whether the page holds its own answers. */
export function isEmbedded() {
  return embedded !== null;
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
 * Listen to changes of a run, or of the list of runs, until `close` is called; reconnects by itself.
 *
 * `hear(what)` gets a list of what changed; after a lost connection it gets null, which means anything.
 * `tell(state)` gets "live" or "lost". While the page is hidden, nothing is open.
 */
export function listen(id, hear, tell) {
  let source = null;
  let wait = FIRST_WAIT;
  let timer = 0;
  let missed = false;

  function open() {
    clearTimeout(timer);
    if (source || document.hidden) return;
    source = new EventSource(id === null ? "api/events" : `api/events?run=${encodeURIComponent(id)}`);
    source.onopen = () => {
      wait = FIRST_WAIT;
      tell("live");
      if (missed) hear(null);
      missed = false;
    };
    source.onerror = () => {
      shut();
      tell("lost");
      timer = setTimeout(open, wait);
      wait = Math.min(2 * wait, LONGEST_WAIT);
    };
    source.addEventListener("change", (event) => hear(JSON.parse(event.data).what ?? null));
  }

  function shut() {
    source?.close();
    source = null;
    missed = true;
  }

  function visible() {
    if (document.hidden) shut();
    else open();
  }

  document.addEventListener("visibilitychange", visible);
  addEventListener("online", open);
  open();
  return {
    close() {
      clearTimeout(timer);
      shut();
      document.removeEventListener("visibilitychange", visible);
      removeEventListener("online", open);
    },
  };
}
