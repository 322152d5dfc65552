"""`esper report`: write the HTML report of a run."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from esper.cli.flags import RunDir
from esper.leyline.errors import EsperError, FileError
from esper.telemetry import RunFolder


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write the report of a run as one HTML file.

    The file holds its pictures, which are written to pictures/ as well.
    """

    run_dir: RunDir
    """Folder of the run."""

    def run(self) -> None:
        path = write_report(RunFolder.open(self.run_dir))
        if path is None:
            raise EsperError("a report needs the package matplotlib: pip install 'esper-nn[plot]'")
        print(path)


def write_report(folder: RunFolder) -> Path | None:
    """Write the report of a run so far and return its path, or None where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return None
    from esper.dashboard.report import Story, draw, html

    story = Story(
        name=folder.path.resolve().name,
        config=folder.config(),
        environment=folder.environment(),
        reports=folder.reports(),
        exams=folder.exams(),
        lives=folder.lives(),
    )
    pictures = folder.path / "pictures"
    try:
        pictures.mkdir(exist_ok=True)
        folder.write("report.html", html(story, draw(story, pictures)))
    except OSError as error:
        raise FileError(f"cannot write {pictures}: {error.strerror or error}") from error
    return folder.path / "report.html"
