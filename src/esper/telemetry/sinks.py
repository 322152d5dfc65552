"""Whoever listens to a run besides its folder."""

from pathlib import Path
from typing import Any, Protocol

from esper.leyline.errors import EsperError
from esper.leyline.reports import UpdateReport
from esper.telemetry.scalars import scalars


class Sink(Protocol):
    """Hears of every update, in order."""

    def hear(self, report: UpdateReport) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files for TensorBoard, in a run's folder. After a resume, what will be heard again is hidden."""

    def __init__(self, folder: Path, update: int) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise EsperError("tensorboard is not installed: pip install 'esper[tensorboard]'") from None
        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=update)

    def hear(self, report: UpdateReport) -> None:
        for name, value in scalars(report).items():
            self.writer.add_scalar(name, value, report.update)
        for anomaly in report.anomalies:
            text = f"{anomaly.kind} ({anomaly.where}): {anomaly.explanation}; {anomaly.suggestion}"
            self.writer.add_text("anomalies", text, report.update)

    def close(self) -> None:
        self.writer.close()
