"""Measure the live page: start, first paint and memory with many runs, then memory during minutes of live updates.

    esper train smoke --run-dir runs/first
    python benchmark/live_page.py runs/first [--runs 300] [--reports 10000] [--minutes 10]

Copies of the run share one log of `--reports` reports. A browser (Chromium, through playwright) opens the list, then
the page of one more run, to whose logs a report and a garden are appended twice a second. Prints one line of JSON a
minute: memory of server and page, and the longest time from a line in the log to its figure on the page.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from playwright.sync_api import Page, sync_playwright

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
KEPT = ("config.json", "environment.json", "start.json")
SHOWN = "n => Number(document.querySelector('.figures > div:last-child b').textContent.replaceAll(',', '')) >= n"
"""Whether the page shows so many updates."""


@dataclass(frozen=True, kw_only=True)
class Question:
    run_dir: Annotated[Path, tyro.conf.Positional]
    """A finished run."""
    runs: int = 300
    reports: int = 10_000
    minutes: float = 10.0
    chromium: str = "/usr/bin/chromium"

    def run(self) -> None:
        with tempfile.TemporaryDirectory(dir=self.run_dir.resolve().parent) as folder:
            live = self.fill(Path(folder))
            with served(Path(folder)) as (process, url, took), sync_playwright() as started:
                browser = started.chromium.launch(executable_path=self.chromium, args=list(FLAGS))
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                found = {"runs": self.runs, "reports": self.reports, "address_after_s": round(took, 2)}
                print(json.dumps(found | first_paint(page, url) | memory(page, process)), flush=True)
                listed = page.evaluate("fetch('/api/runs?search=live').then(answer => answer.json())")
                page.goto(f"{url}#/run/{listed['runs'][0]['id']}")
                page.wait_for_selector("canvas")
                self.soak(page, process, live)
                browser.close()

    def fill(self, folder: Path) -> Path:
        """Make the runs, and return the folder of the one that goes on."""
        lines = (self.run_dir / "reports.jsonl").read_text().splitlines()
        log = folder / "log.jsonl"
        with open(log, "w", encoding="utf-8") as file:
            file.writelines(numbered(lines[n % len(lines)], n) for n in range(self.reports))
        for n in range(self.runs):
            made = folder / f"{n:03d}"
            made.mkdir()
            for name in KEPT:
                shutil.copy(self.run_dir / name, made)
            os.link(log, made / "reports.jsonl")
        live = folder / "live"
        shutil.copytree(self.run_dir, live)
        return live

    def soak(self, page: Page, process: int, live: Path) -> None:
        """Append to the logs of a run while its page is open, and report memory every minute."""
        reports, gardens = ((live / name).read_text().splitlines() for name in ("reports.jsonl", "garden.jsonl"))
        began, update, told, longest = time.monotonic(), len(reports), 0, 0.0
        while (now := time.monotonic() - began) < 60 * self.minutes:
            for name, lines in (("reports.jsonl", reports), ("garden.jsonl", gardens)):
                with open(live / name, "a", encoding="utf-8") as file:
                    file.write(numbered(lines[update % len(lines)], update))
            update += 1
            if update % 10 == 0:
                longest = max(longest, shown_after(page, update))
            page.wait_for_timeout(500)
            if now >= 60 * told:
                told += 1
                found = {"minute": round(now / 60, 1), "updates": update, "shown_after_s": round(longest, 2)}
                print(json.dumps(found | memory(page, process)), flush=True)
                longest = 0.0


def shown_after(page: Page, updates: int) -> float:
    """Return the seconds until the page shows so many updates."""
    started = time.perf_counter()
    page.wait_for_function(SHOWN, arg=updates, polling=20)
    return time.perf_counter() - started


def numbered(line: str, update: int) -> str:
    """Return a report or garden with another number."""
    return json.dumps(json.loads(line) | {"update": update}) + "\n"


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, str, float]]:
    """Run `esper ui`; yield its process, its address and the seconds until it was printed."""
    started = time.perf_counter()
    command = [
        sys.executable,
        "-c",
        "from esper.cli import main; main()",
        "ui",
        str(folder),
        "--port",
        "0",
        "--no-open",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        url = re.search(r"http://\S+", said)
        assert url is not None, said
        try:
            yield process.pid, url.group(), time.perf_counter() - started
        finally:
            process.terminate()


def first_paint(page: Page, url: str) -> dict[str, Any]:
    """Open the list, and return when something was painted and when the rows were there, in seconds."""
    started = time.perf_counter()
    page.goto(url)
    page.wait_for_selector("tbody tr")
    rows = time.perf_counter() - started
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
    return {"first_paint_s": round(paint, 2), "rows_after_s": round(rows, 2)}


def memory(page: Page, process: int) -> dict[str, Any]:
    """Return the memory of server and page in MB, after collecting garbage, and the nodes of the page."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    heap, nodes = session.send("Runtime.getHeapUsage")["usedSize"], session.send("Memory.getDOMCounters")["nodes"]
    session.detach()
    status = Path(f"/proc/{process}/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
    return {"server_mb": round(resident, 1), "page_mb": round(heap / 1e6, 1), "nodes": nodes}


if __name__ == "__main__":
    tyro.cli(Question).run()
