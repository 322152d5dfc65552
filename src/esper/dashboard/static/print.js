/** What is done before the page is printed, and undone afterwards. */

const steps = [openFolds];
let opened = [];

/** Call a function with true before the page is printed, and with false afterwards. */
export function onPrint(step) {
  steps.push(step);
}

function openFolds(isPrinting) {
  if (isPrinting) opened.push(...document.querySelectorAll("details.fold.prints:not([open])"));
  for (const fold of opened) fold.open = isPrinting;
  if (!isPrinting) opened = [];
}

/** Browsers tell of one print twice: before it, and when they have counted pages; from the first on, sizes stay. */
function printing(now) {
  document.documentElement.toggleAttribute("data-paper", now);
  for (const step of steps) step(now);
}

addEventListener("beforeprint", () => printing(true));
addEventListener("afterprint", () => printing(false));
matchMedia("print").addEventListener("change", (event) => printing(event.matches));
