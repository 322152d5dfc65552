"""Write the parts of the docs that come from the code or from the exam of the shipped controller: everything between
`<!-- table: NAME -->` and `<!-- end -->` in README.md and docs/, and the mutants of each row of docs/findings.md.

python docs/tables.py [--check]
"""

import ast
import inspect
import io
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from enum import Enum
from math import exp, inf
from pathlib import Path
from statistics import mean
from textwrap import dedent
from unittest.mock import patch

import esper
from esper.cli import main
from esper.cli.console import show_exam
from esper.cli.exam import Exam
from esper.dashboard.exam_text import about, cells, headings
from esper.exam.arms import ARMS, admitted
from esper.exam.holding import held_one_by_one, hold
from esper.exam.hosts import Hosts
from esper.exam.records import ArmReport, ExamReport
from esper.exam.runs import EpisodeRecorder, run_arm
from esper.exam.sitting import Sitting
from esper.exam.tuning import Tuner
from esper.exam.verdicts import compare_arms
from esper.kasmina.blueprints import blueprint, blueprint_names
from esper.kasmina.gates import LifecycleConfig
from esper.kasmina.host import num_parameters
from esper.kasmina.hosts import build_host, host_kind, host_kinds, weak_host
from esper.kasmina.slots import build_seed
from esper.leyline.actions import STYLES, ActionSpace, Graft, Head, Op
from esper.leyline.lifecycle import TRANSITIONS, Gate, Stage
from esper.leyline.specs import Stream
from esper.simic import rollout
from esper.simic.checkpoint import save_training_run
from esper.simic.evaluation import Tally
from esper.simic.lives import LifeState, episode, lives
from esper.simic.rollout import Collector, collect
from esper.simic.sequences import to_sequences
from esper.simic.train import Training
from esper.tamiyo import Controller
from esper.tamiyo.controller_files import SHIPPED
from esper.tamiyo.features import remember
from esper.telemetry.folder import RunFolder
from esper.tolaria import FleetEnv
from esper.tolaria.checkpoint import env_tensors
from esper.tolaria.env import EnvState

DOCS = Path(__file__).parent
LEDGER = DOCS / "findings.md"
REQUIREMENT = re.compile(r"^\| ([A-E]\d+|law \d+)\b")
"""The start of a row of the ledger."""
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rows(head: Iterable[object], body: Iterable[Iterable[object]]) -> str:
    lines = [list(map(str, head)), *[list(map(str, row)) for row in body]]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def field_docs(cls: type) -> dict[str, str]:
    """The string under each assignment in a class body."""
    body = ast.parse(dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        target = before.targets[0] if isinstance(before, ast.Assign) else getattr(before, "target", None)
        if isinstance(target, ast.Name) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            docs[target.id] = str(after.value.value)
    return docs


def lower(member: Enum | None) -> str:
    return "" if member is None else member.name.lower()


def stages() -> str:
    docs = field_docs(Stage)
    return rows(("stage", "the slot holds", ""), ((s.name, s.voice.value, docs[s.name]) for s in Stage))


def transitions() -> str:
    def when(row) -> str:
        chosen = f"chosen: {row.op.name}" if row.op else ""
        return " or ".join(filter(None, [chosen, "automatic" if row.automatic else ""]))

    return rows(
        ("from", "to", "how", "gate"),
        ((r.source.name, r.target.name, when(r), lower(r.gate)) for r in TRANSITIONS),
    )


def gates() -> str:
    docs = field_docs(Gate)
    return rows(("gate", "opens when"), ((lower(gate), docs[gate.name]) for gate in Gate))


def thresholds() -> str:
    docs, defaults = field_docs(LifecycleConfig), LifecycleConfig()
    return rows(("field", "default", ""), ((f"`{n}`", getattr(defaults, n), doc) for n, doc in docs.items()))


def relevance() -> str:
    return rows(
        ("op", *map(lower, Head)), ([op.name, *("●" if head in op.heads else "" for head in Head)] for op in Op)
    )


def choices() -> str:
    space = ActionSpace(("(the host's slots)",), ("(what is registered for its stream)",))
    return rows(("head", "choices"), ((lower(head), ", ".join(names)) for head, names in space.choices.items()))


def styles() -> str:
    return rows(("style", "graft", "ramp"), ((n, lower(s.graft), lower(s.ramp)) for n, s in STYLES.items()))


EXAMPLES = {"mlp": (16,), "cnn1d": (40, 1), "cnn2d": (8, 8, 1), "transformer": (64,)}
EXAMPLES |= {"gpt": EXAMPLES["transformer"], "resnet": EXAMPLES["cnn2d"]}


def hosts() -> str:
    built = {kind: build_host(weak_host(kind, EXAMPLES[kind], 10)) for kind in host_kinds()}
    return rows(
        ("kind", "stream", "weak preset's widths", "its parameters (10 outputs)"),
        ((k, h.stream, list(h.spec.widths), f"{num_parameters(h):,} on {list(EXAMPLES[k])}") for k, h in built.items()),
    )


def seeds() -> str:
    """Each blueprint with its size in the first slot of its stream's weak host."""
    kinds = {host_kind(kind).stream: kind for kind in host_kinds()}

    def row(stream: Stream, name: str) -> tuple[object, ...]:
        slot = build_host(weak_host(kinds[stream], EXAMPLES[kinds[stream]], 10)).slot_specs[0]
        spec = blueprint(name, stream).spec
        size = num_parameters(build_seed(slot, name, Graft.ADD))
        return stream, f"`{name}`", spec.family, spec.summary, size

    return rows(
        ("stream", "blueprint", "family", "", "parameters"),
        (row(stream, name) for stream in Stream for name in blueprint_names(stream)),
    )


RIVALS = ("never", "random", "heuristic", "grid oracle", "longer", "static, longer")
RULES = ("never", "random", "heuristic", "schedule", "plateau", "gap", "gradient", "least gradient", "oversized")
GROWN = ("static", "static, longer", "replay")
COLUMNS = ("metric", "IQM", "growth", "FLOPs", "lr", "J", "ahead", "P(better)", "in score")


def cell(arm: ArmReport, column: str) -> str:
    """A cell of a table, with a real minus sign; differences that are shown are bold."""
    text = cells(arm)[column]
    if column not in ("ahead", "in score") or not text:
        return text
    mean, rest = text.replace("-", "−").split(" ", 1)
    strong = "**" if column == "ahead" and arm.verdict != "level" else ""
    return f"{strong}{mean}{strong} {rest}"


def exams() -> str:
    """Exams of the shipped controller: its J, and its lead over other arms."""

    def row(exam: ExamReport) -> list[str]:
        arms = exam.by_name
        against = (cell(arms[name], "ahead") if name in arms else "" for name in RIVALS)
        return [exam.setting, cells(arms[exam.policy])["J"], *against]

    return rows(("setting", "J", *RIVALS), map(row, RunFolder(SHIPPED).exams()))


def payoff() -> str:
    """What growing gave in each setting: metric and size without and with it, and against training longer."""

    def row(exam: ExamReport) -> list[str]:
        arms = exam.by_name
        grown, never = arms[exam.policy], arms["never"]
        metric = f"{exam.metric} {never.mean:.3f} → {grown.mean:.3f}"
        size, cost = f"{never.params:,.0f} → {grown.params:,.0f}", f"× {grown.flops / never.flops:.1f}"
        longer = f"{arms['longer'].mean:.3f}, {SEEN[arms['longer'].verdict]}" if "longer" in arms else "not run"
        return [exam.setting, metric, size, cost, never.verdict, longer]

    head = ("setting", "without → with growth", "parameters", "FLOPs", "growing is", "never grown, same FLOPs")
    return rows(head, map(row, RunFolder(SHIPPED).exams()))


def rules() -> str:
    """The rules that the controller is better than, level with or worse than, by setting and in total."""
    verdicts = ("better", "level", "worse")
    counts: Counter[str] = Counter()

    def row(exam: ExamReport) -> list[str]:
        met = [arm for arm in exam.arms if arm.name in RULES]
        counts.update(arm.verdict for arm in met)
        share = exam.of_oracle
        gain = f"{share.mean:.0%} ({share.low:.0%} to {share.high:.0%})" if share else ""
        return [exam.setting, *(", ".join(arm.name for arm in met if arm.verdict == v) for v in verdicts), gain]

    body = [row(exam) for exam in RunFolder(SHIPPED).exams()]
    body.append(["total", *(str(counts[v]) for v in verdicts), ""])
    return rows(("setting", "better than", "no difference from", "worse than", "share of the grid oracle's gain"), body)


def to_win() -> str:
    """The lead of the grid oracle and of the controller over the heuristic."""
    body = []
    for exam in RunFolder(SHIPPED).exams():
        arms = exam.by_name
        if "grid oracle" in arms:
            ahead = (arms[name].j - arms["heuristic"].j for name in ("grid oracle", exam.policy))
            body.append([exam.setting, *(f"{j:+.3f}".replace("-", "−") for j in ahead)])
    return rows(("setting", "grid oracle − heuristic", "controller − heuristic"), body)


def in_score() -> str:
    """Arms at least as large as the controller's hosts, by score alone; those with its own topologies are left out."""

    def row(exam: ExamReport) -> list[str]:
        least = exam.by_name[exam.policy].params
        told: dict[bool, list[str]] = {True: [], False: []}
        for arm in exam.arms:
            lead = arm.score_difference
            if lead and arm.params >= least and arm.name not in GROWN and lead.low * lead.high > 0:
                told[lead.low > 0].append(f"{arm.name} ({lead.mean:+.3f})".replace("-", "−"))
        return [exam.setting, ", ".join(told[True]), ", ".join(told[False])]

    head = ("setting", "larger, and lower in score", "larger, and higher in score")
    return rows(head, map(row, RunFolder(SHIPPED).exams()))


def all_arms() -> str:
    """Every arm of every exam of the shipped controller."""
    parts = []
    for exam in RunFolder(SHIPPED).exams():
        body = ((arm.name, *(cell(arm, column) for column in COLUMNS)) for arm in exam.arms)
        parts.append(f"**{exam.setting}**. {about(exam)}\n\n{rows(('arm', *headings(exam, COLUMNS)), body)}")
    return "\n".join(parts)


def equal_flops() -> str:
    """The lead over arms with equal FLOPs or epochs. A grown topology pays equal rent when it is trained from scratch,
    so its difference in score is its difference in J."""
    columns = (("longer", "ahead"), ("longer", "in score"), ("static, longer", "ahead"), ("static", "ahead"))

    def row(exam: ExamReport) -> list[str]:
        return [exam.setting, *(cell(exam.by_name[name], column) for name, column in columns)]

    head = ("setting", "longer", "longer, in score", "static, longer", "static")
    return rows(head, (row(exam) for exam in RunFolder(SHIPPED).exams() if "longer" in exam.by_name))


def trainings() -> str:
    """J and growth of each training by itself, and J of other arms."""

    def row(exam: ExamReport) -> list[str]:
        arms = exam.by_name
        ours = list(zip(arms[exam.policy].scores, arms[exam.policy].objectives, strict=True))
        told = [exam.setting]
        for n in range(exam.trainings):
            hosts = ours[n * exam.hosts : (n + 1) * exam.hosts]
            growth = mean(exp((score - j) / exam.rent) - 1 for score, j in hosts)
            told.append(f"{mean(j for _, j in hosts):.3f} ({growth:.2f})")
        return told + [cells(arms[name])["J"] if name in arms else "" for name in RIVALS[:4]]

    found = RunFolder(SHIPPED).exams()
    head = ("setting", *(f"p{n}" for n in range(1, found[0].trainings + 1)), *RIVALS[:4])
    return rows(head, map(row, found))


def frontier() -> str:
    """The arms with a higher score than every smaller arm, from small to large."""

    def row(exam: ExamReport) -> list[str]:
        best, told = -inf, []
        for arm in sorted(exam.arms, key=lambda arm: (arm.params, -mean(arm.scores))):
            if mean(arm.scores) > best:
                best = mean(arm.scores)
                name = f"**{arm.name}**" if arm.name == exam.policy else arm.name
                told.append(f"{name} ({cells(arm)['parameters']}: {cells(arm)['metric']})")
        return [exam.setting, "; ".join(told)]

    return rows(("setting", "arm (parameters: metric)"), map(row, RunFolder(SHIPPED).exams()))


def arms() -> str:
    """All arms of exams besides the policy under test."""
    return rows(
        ("arm", "what it does", "takes part"),
        ((arm.name, arm.does, (inspect.getdoc(arm.when) or "").rstrip(".").lower()) for arm in ARMS),
    )


Walk = tuple[tuple[str, tuple[Callable[..., object] | type, ...]], ...]
"""Steps in order, each with the functions that it goes through."""
WALK_OF_AN_ARM: Walk = (
    ("parse, open run folders, call", (Exam.run, Exam.hold)),
    ("one sitting per fleet; who takes part is read from the table", (held_one_by_one, Sitting, admitted)),
    ("make its policy, play everything in order", (hold,)),
    ("choose its learning rate, once, on hosts for this alone", (Tuner.tuned, Tuner.tried, Hosts.tuning)),
    ("play it on the hosts that count", (Sitting.play, Hosts.scored, run_arm)),
    ("fold its decisions into an outcome and a recording", (episode, Tally.add, EpisodeRecorder.add)),
    ("compare it: the one place that fills the record", (compare_arms,)),
    ("store", (RunFolder.keep_exam,)),
    ("say it in words", (show_exam, about)),
)
WALK_OF_A_DECISION: Walk = (
    ("collect a rollout", (Training.step, collect)),
    ("the one loop", (lives,)),
    ("observe all fleets, decide", (Collector.observe, Controller.act)),
    ("act on every fleet: one state goes in, one comes out", (FleetEnv.step, EnvState)),
    ("remember", (LifeState.followed_by, remember)),
    ("a named record of what it led to, joined over fleets", (rollout._earned,)),
    ("cut into sequences", (to_sequences,)),
    ("checkpoint the states as they are", (save_training_run, env_tensors)),
)


def where(part: Callable[..., object] | type) -> str:
    """The file, line and name of a function or class."""
    inner = inspect.unwrap(part) if not isinstance(part, type) else part
    file = Path(inspect.getsourcefile(inner) or "").relative_to(Path(esper.__file__).parent)
    return f"`{file}:{inspect.getsourcelines(inner)[1]}` `{part.__qualname__}`"


def walked(walk: Walk) -> str:
    return rows(
        ("step", "where"),
        ((f"{'→ ' if n else ''}{step}", " → ".join(map(where, parts))) for n, (step, parts) in enumerate(walk)),
    )


def walk_of_an_arm() -> str:
    return walked(WALK_OF_AN_ARM)


def walk_of_a_decision() -> str:
    return walked(WALK_OF_A_DECISION)


def help_of(*command: str) -> str:
    """What `esper COMMAND --help` prints, 80 columns wide and without colours."""
    printed = io.StringIO()
    plain = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    with patch.dict(os.environ, plain), redirect_stdout(printed), suppress(SystemExit):
        main([*command, "--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def commands(*group: str) -> list[tuple[str, ...]]:
    """A command and, after it, the commands inside it, which its help lists."""
    listed = re.search(r"^ *(?:sub)?commands.*", help_of(*group), re.DOTALL | re.MULTILINE)
    names = re.findall(r"^ {2,4}(?:• )?([a-z]\w*)  ", listed[0], re.MULTILINE) if listed else []
    return [group, *(command for name in names for command in commands(*group, name))]


def cli() -> str:
    """The help texts of all commands."""
    parts = ((" ".join(("esper", *command)), help_of(*command)) for command in commands())
    return "\n".join(f"## {name}\n\n```text\n{text}\n```\n" for name, text in parts)


def mutants() -> dict[str, list[str]]:
    """The mutants of every requirement."""
    found: dict[str, list[str]] = {}
    for path in sorted((DOCS.parent / "tests/mutants").glob("*.toml")):
        for mutant in tomllib.loads(path.read_text())["mutant"]:
            for row in mutant["rows"]:
                found.setdefault(row, []).append(mutant["id"])
    return found


def further_mutants() -> str:
    """Mutants that break something other than a row of the ledger."""
    others = {row: ids for row, ids in mutants().items() if not REQUIREMENT.match(f"| {row} ")}
    return rows(("what", "mutants"), ((row, ", ".join(ids)) for row, ids in sorted(others.items())))


def with_mutants(ledger: str) -> str:
    """The ledger, with the mutants of each row in its last column."""
    found, lines = mutants(), ledger.split("\n")
    for i, line in enumerate(lines):
        if row := REQUIREMENT.match(line):
            cells = line.strip("| ").split(" | ")[:4]
            lines[i] = f"| {' | '.join([*cells, ', '.join(found.get(row[1], []))])} |"
    return "\n".join(lines)


SEEN = {"better": "worse", "level": "level", "worse": "better"}
"""A verdict on the controller, seen from the other arm."""
TABLES: dict[str, Callable[[], str]] = {
    table.__name__: table
    for table in (
        stages,
        transitions,
        gates,
        thresholds,
        relevance,
        choices,
        styles,
        hosts,
        seeds,
        exams,
        payoff,
        rules,
        to_win,
        in_score,
        all_arms,
        trainings,
        equal_flops,
        frontier,
        further_mutants,
        cli,
        arms,
        walk_of_an_arm,
        walk_of_a_decision,
    )
}


def refreshed(page: Path) -> str:
    text = BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", page.read_text())
    return with_mutants(text) if page == LEDGER else text


def refresh(check: bool) -> int:
    pages = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    stale = [page for page in pages if refreshed(page) != page.read_text()]
    for page in stale:
        print(f"{'stale' if check else 'refreshed'}: {page.relative_to(DOCS.parent)}")
        if not check:
            page.write_text(refreshed(page))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(refresh("--check" in sys.argv))
