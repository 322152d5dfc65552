"""Whoever listens to a run besides its folder."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from esper.leyline.errors import EsperError
from esper.leyline.reports import UpdateReport
from esper.telemetry.board import describe
from esper.telemetry.scalars import scalars

SinkName = Literal["tensorboard", "wandb", "mlflow"]


class Sink(Protocol):
    """Hears of every update, in order."""

    def hear(self, report: UpdateReport) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files for TensorBoard, in a run's folder. After a resume, what will be heard again is hidden."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], update: int) -> None:
        with _beginning("tensorboard"):
            from torch.utils.tensorboard.writer import SummaryWriter

            self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=update)

    def hear(self, report: UpdateReport) -> None:
        for name, value in scalars(report).items():
            self.writer.add_scalar(name, value, report.update)
        for anomaly in report.anomalies:
            self.writer.add_text("anomalies", describe(anomaly), report.update)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A run of Weights & Biases, named like its folder. $WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], update: int) -> None:
        with _beginning("wandb"):
            import wandb

            self.run: Any = wandb.init(
                project="esper", name=name, id=name, resume="allow", dir=str(folder), config=dict(config)
            )

    def hear(self, report: UpdateReport) -> None:
        self.run.log(scalars(report), step=report.update)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of MLflow, named like its folder, where $MLFLOW_TRACKING_URI says.

    A resumed run goes on with the MLflow run that it began."""

    def __init__(self, folder: Path, name: str, config: Mapping[str, Any], update: int) -> None:
        with _beginning("mlflow"):
            import mlflow

            self.client: Any = mlflow.MlflowClient()
            found = self.client.get_experiment_by_name("esper")
            experiment = found.experiment_id if found else self.client.create_experiment("esper")
            before = self.client.search_runs([experiment], f"attributes.run_name = '{name}'")
            run = before[0] if before else self.client.create_run(experiment, run_name=name)
            self.run_id = run.info.run_id
            for key, value in ({} if before else _flat(config)).items():
                self.client.log_param(self.run_id, key, value)

    def hear(self, report: UpdateReport) -> None:
        for name, value in scalars(report).items():
            self.client.log_metric(self.run_id, name, value, step=report.update)

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


SINKS: dict[SinkName, Any] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


@contextmanager
def _beginning(package: str) -> Iterator[None]:
    """What goes wrong in here is told in one sentence, whatever the package raises."""
    try:
        yield
    except ImportError:
        raise EsperError(f"{package} is not installed: pip install 'esper-nn[{package}]'") from None
    except Exception as error:
        raise EsperError(f"{package} could not begin: {error}") from error


def _flat(x: Any, at: str = "") -> dict[str, str]:
    """Every leaf of nested records under its dotted name."""
    if isinstance(x, Mapping | list):
        pairs = x.items() if isinstance(x, Mapping) else enumerate(x)
        return {
            name: leaf for key, value in pairs for name, leaf in _flat(value, f"{at}.{key}" if at else str(key)).items()
        }
    return {at: str(x)}
