"""Make run folders of the five controllers in benchmark/controllers, so that they can be examined and continued.

python benchmark/unpack.py [FOLDER]    # runs/controllers if not given
"""

import shutil
from pathlib import Path
from typing import Annotated

import tyro

from esper.recipes import recipe
from esper.telemetry.folder import RunFolder

KEPT = Path(__file__).parent / "controllers"


def unpack(folder: Annotated[Path, tyro.conf.Positional] = Path("runs/controllers")) -> None:
    """Copy every controller into a run folder with the config of the last stage of `general`."""
    for n, path in enumerate(sorted(KEPT.iterdir()), 1):
        to, last = folder / path.name, recipe("general").seeded(n).stages[-1]
        if not (to / "config.json").exists():
            shutil.copytree(path, to, dirs_exist_ok=True)
            RunFolder.create(to, last.plain(), RunFolder(path).environment())


if __name__ == "__main__":
    tyro.cli(unpack)
