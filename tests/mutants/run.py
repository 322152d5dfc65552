"""Break the code on purpose, one mutant at a time, and see whether the tests that should notice do.

Every TOML file beside this one is a table of mutants: `id`, the requirements it breaks (`rows`: rows of the ledger,
laws, gates, transitions, statistics), `what` is broken, the `file` under src/esper, its exact `text`, the
`replacement`, and the `tests` that must notice. A mutant is killed by the first of them that fails. One whose text is
gone is an error.

python tests/mutants/run.py [--root FOLDER] [--sample 20] [--only ID ...] [--against TEST ...] [--write docs/mutants.md]
"""

import argparse
import importlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT = 240
"""Seconds after which a mutant's tests are ended: it counts as an error, not as killed."""
OUTCOMES = ("killed", "survived", "error")
BEGIN, END = "<!-- made by make mutants -->", "<!-- end -->"


@dataclass(frozen=True)
class Mutant:
    """One semantic change of the code, and the tests that must notice it."""

    id: str
    rows: tuple[str, ...]
    what: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]
    table: str
    """The TOML file that it stands in."""

    def source(self, root: Path) -> Path:
        return root / "src/esper" / self.file

    def problem(self, root: Path) -> str | None:
        """Why it cannot be applied, if it cannot."""
        if not self.source(root).is_file():
            return f"there is no {self.file}"
        count = self.source(root).read_text().count(self.text)
        if count != 1:
            return f"its text occurs {count} times in {self.file}: move it along with the code"
        return "its replacement is its text" if self.text == self.replacement else None


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    outcome: str
    detail: str
    """The test that failed first, or what went wrong."""
    seconds: float


def load(root: Path = ROOT) -> list[Mutant]:
    """All mutants, file by file."""
    found = []
    for path in sorted((root / "tests/mutants").glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutant"]:
            lists = {name: tuple(entry.pop(name)) for name in ("rows", "tests")}
            found.append(Mutant(**entry, **lists, table=path.stem))
    return found


def sample(mutants: list[Mutant], count: int, day: date) -> list[Mutant]:
    """Some of them, others every day."""
    return random.Random(day.isoformat()).sample(mutants, min(count, len(mutants)))


class Workshop:
    """A scratch copy of the tree in which one mutant after the other is applied and taken back."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.uses = path, 0
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=root,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (root / name).is_file() and not name.startswith("benchmark/"):
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, path / name)

    def write(self, mutant: Mutant, text: str) -> None:
        """Change a source. Its time is one that no cached bytecode has seen."""
        self.uses += 1
        path = mutant.source(self.path)
        path.write_text(text)
        os.utime(path, (self.uses, self.uses))

    def begin(self, mutant: Mutant | None, tests: list[str]) -> "Attempt":
        if mutant is not None:
            before = mutant.source(self.path).read_text()
            self.write(mutant, before.replace(mutant.text, mutant.replacement))
            return Attempt(self, mutant, tests, before)
        return Attempt(self, None, tests, "")


class Attempt:
    """The tests of one mutant, running in a process of their own, forked from one that has imported torch already."""

    def __init__(self, shop: Workshop, mutant: Mutant | None, tests: list[str], before: str) -> None:
        self.shop, self.mutant, self.before, self.started = shop, mutant, before, time.monotonic()
        self.log = shop.path.with_suffix(".log")
        self.found = shop.path.with_suffix(".json")
        self.found.unlink(missing_ok=True)
        self.process = os.fork()
        if self.process == 0:
            _run_tests(shop.path, tests, self.log, self.found)

    def poll(self) -> tuple[str, str, float] | None:
        """Outcome, detail and seconds once it has ended."""
        pid, status = os.waitpid(self.process, os.WNOHANG)
        seconds = time.monotonic() - self.started
        if pid == 0 and seconds < LIMIT:
            return None
        if pid == 0:
            os.killpg(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        if self.mutant is not None:
            self.shop.write(self.mutant, self.before)
        if pid == 0:
            return "error", f"still running after {LIMIT} seconds", seconds
        return *self._outcome(os.waitstatus_to_exitcode(status)), seconds

    def _outcome(self, code: int) -> tuple[str, str]:
        found: dict[str, Any] = json.loads(self.found.read_text()) if self.found.exists() else {}
        if code == 1 and found.get("failed"):
            return "killed", found["failed"]
        if code == 0 and found.get("ran"):
            return "survived", f"{found['ran']} tests passed"
        return "error", " ".join(self.log.read_text().split()[-60:])


class Recorder:
    """A plugin of pytest that remembers the first failure."""

    def __init__(self) -> None:
        self.ran, self.failed = 0, ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.ran += report.when == "call" and not report.skipped
        if report.failed and not self.failed:
            self.failed = report.nodeid


def _run_tests(tree: Path, tests: list[str], log: Path, found: Path) -> None:
    """In a child process: the tests of a tree, ended by the first that fails."""
    os.setpgid(0, 0)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree / "src")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False  # what no mutant has changed is compiled once
    sys.path.insert(0, str(tree / "src"))
    options = ["-x", "-p", "no:cacheprovider", "--tb=short", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = 3
    try:
        import pytest

        recorder = Recorder()
        code = int(pytest.main([*options, *tests], plugins=[recorder]))
        esper = sys.modules.get("esper")
        if esper is not None and not str(esper.__file__).startswith(str(tree)):
            print(f"esper was imported from {esper.__file__}")
            code = 3
        found.write_text(json.dumps({"ran": recorder.ran, "failed": recorder.failed}))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(mutants: list[Mutant], workers: int, root: Path) -> list[Result]:
    """All of them, some side by side, each told of as it ends."""
    problems = {m.id: m.problem(root) for m in mutants}
    results = [Result(m, "error", problem, 0.0) for m in mutants if (problem := problems[m.id]) is not None]
    for result in results:
        tell(result)
    waiting = [m for m in mutants if problems[m.id] is None][::-1]
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        free = [Workshop(Path(scratch) / f"tree{i}", root) for i in range(workers)]
        running: list[Attempt] = []
        while waiting or running:
            while free and waiting:
                mutant = waiting.pop()
                running.append(free.pop().begin(mutant, list(mutant.tests)))
            time.sleep(0.05)
            for attempt in list(running):
                if (ended := attempt.poll()) is not None:
                    running.remove(attempt)
                    free.append(attempt.shop)
                    assert attempt.mutant is not None
                    results.append(Result(attempt.mutant, *ended))
                    tell(results[-1])
    return results


def unbroken(mutants: list[Mutant], root: Path) -> str | None:
    """Why the named tests say nothing of mutants, if they fail on the code as it is."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        tests = sorted({test for m in mutants for test in m.tests})
        attempt = Workshop(Path(scratch) / "tree", root).begin(None, tests)
        _, status = os.waitpid(attempt.process, 0)
        outcome, detail = attempt._outcome(os.waitstatus_to_exitcode(status))
    return None if outcome == "survived" else detail


def tell(result: Result) -> None:
    print(f"{result.outcome:9}{result.seconds:6.1f} s  {result.mutant.id}: {result.detail}", flush=True)


def table(results: list[Result], seconds: float) -> str:
    """The result as Markdown: one line of totals, then every mutant with the test that killed it."""
    counts = {outcome: sum(r.outcome == outcome for r in results) for outcome in OUTCOMES}
    lines = [
        f"`make mutants`, {date.today()}, {platform.machine()} with {os.cpu_count()} cores, Python"
        f" {platform.python_version()}: {len(results)} mutants, {counts['killed']} killed,"
        f" {counts['survived']} survived, {counts['error']} errors, {seconds / 60:.0f} minutes.",
        "",
        "| mutant | breaks | what is broken | file | killed by | s |",
        "|---|---|---|---|---|--:|",
    ]
    for r in sorted(results, key=lambda r: (r.mutant.table, r.mutant.file, r.mutant.id)):
        m, test = r.mutant, r.detail.replace("|", "\\|")
        by = f"`{test}`" if r.outcome == "killed" else f"**{r.outcome}**: {test}"
        lines.append(f"| {m.id} | {', '.join(m.rows)} | {m.what} | `{m.file}` | {by} | {r.seconds:.0f} |")
    return "\n".join(lines)


def write_table(page: Path, made: str) -> None:
    """Replace what stands between the marks of a page; the words around it are written by hand."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the project; this one if not given")
    parser.add_argument("--sample", type=int, help="only so many, others every day; the tests are not run unbroken")
    parser.add_argument("--only", nargs="+", help="only these ids, or all of these tables")
    parser.add_argument("--write", type=Path, help="write the table of all results there")
    parser.add_argument("--against", nargs="+", help="run these tests instead of those that are named")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    started, mutants = time.monotonic(), load(asked.root)
    if asked.only:
        mutants = [m for m in mutants if m.id in asked.only or m.table in asked.only]
    if asked.against:
        mutants = [replace(m, tests=tuple(asked.against)) for m in mutants]
    if asked.sample:
        mutants = sample(mutants, asked.sample, date.today())
    elif not asked.only and (failed := unbroken(mutants, asked.root)):
        print(f"the tests fail without any mutant: {failed}")
        return 1
    results = run(mutants, asked.workers, asked.root)
    seconds = time.monotonic() - started
    counts = {outcome: sum(r.outcome == outcome for r in results) for outcome in OUTCOMES}
    print(f"{len(results)} mutants: " + ", ".join(f"{n} {name}" for name, n in counts.items()) + f", {seconds:.0f} s")
    if asked.write:
        write_table(asked.write, table(results, seconds))
    return 0 if results and counts["killed"] == len(results) else 1


def preload() -> None:
    """Import what every test needs before any process is forked: most of the time of a small test goes there."""
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # as tests/conftest.py, before torch starts
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # imports torch's compiler
    for name in (
        "beartype",
        "hypothesis",
        "jaxtyping",
        "numpy",
        "rich.table",
        "safetensors.torch",
        "tyro",
        "typeguard",
    ):
        importlib.import_module(name)


if __name__ == "__main__":
    preload()
    sys.exit(main())
