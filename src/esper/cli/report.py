"""`esper report`: write the HTML report of a run."""

from dataclasses import dataclass
from pathlib import Path

from esper.cli.flags import RunDir
from esper.telemetry import RunFolder

REPORT = "report.html"


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write the report of a run as one HTML file.

    The file holds its own data and needs no network: send it, print it, or open it years later.
    """

    run_dir: RunDir
    """Folder of the run."""

    def run(self) -> None:
        print(write_report(RunFolder.open(self.run_dir)))


def write_report(folder: RunFolder) -> Path:
    """Write the report of a run so far and return its path."""
    from esper.dashboard.report import Story, html

    story = Story(
        name=folder.path.resolve().name,
        config=folder.config(),
        environment=folder.environment(),
        reports=folder.reports(),
        exams=folder.exams(),
        lives=folder.lives(),
        state="done" if folder.done else "running" if folder.writer() else "stopped",
        never=folder.start()["never"],
    )
    folder.write(REPORT, html(story))
    return folder.path / REPORT
