"""Draw the life of a host so far, as the frames of an environment."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from torch import Tensor

from esper.dashboard.life import draw_life, life_size
from esper.dashboard.style import QUIET, drawing
from esper.leyline.errors import EsperError, unknown
from esper.leyline.reports import EpochReport
from esper.leyline.state import Setting
from esper.simic.life_reports import decision_values, epoch_report
from esper.simic.lives import LifeState
from esper.tolaria.env import Step

FRAMES, WINDOW = "rgb_array", "human"
RENDER_FPS = 4
GYM = "pip install 'esper-nn[gym]'"


def require_known(render_mode: str | None, modes: Sequence[str]) -> None:
    """Raise an error if a render mode is none of those that an env offers."""
    if render_mode not in (None, *modes):
        raise unknown("render_mode", render_mode, modes)


class Film:
    """The reports of every host's life so far. A life that has ended is shown until the next decision."""

    def __init__(self, setting: Setting, num_hosts: int) -> None:
        self.setting = setting
        self.reports: list[list[EpochReport]] = [[] for _ in range(num_hosts)]
        self.over = [False] * num_hosts

    def begin(self, rows: Bool[Tensor, " N"]) -> None:
        """Forget the lives of some hosts."""
        for n in rows.nonzero()[:, 0].tolist():
            self.reports[n], self.over[n] = [], False

    def add(self, before: LifeState, actions: Int[Tensor, "N H"], step: Step) -> None:
        """Add one decision of every host."""
        values = {name: value.cpu() for name, value in decision_values(before, actions, step).items()}
        for n, reports in enumerate(self.reports):
            if self.over[n]:
                reports.clear()
            row = {name: value[n] for name, value in values.items()}
            reports.append(epoch_report(self.setting, len(reports), row))
            self.over[n] = bool(row["ended"])

    def frames(self) -> tuple[np.ndarray, ...]:
        """Draw the life of every host."""
        return tuple(frame(reports, len(self.setting.space.slots)) for reports in self.reports)


def frame(reports: Sequence[EpochReport], slots: int) -> np.ndarray:
    """Return a life as a picture, (height, width, 3); it has the same size before the first epoch."""
    file = BytesIO()
    if reports:
        draw_life(reports, file)
    else:
        with drawing(file, *life_size(slots)) as figure:
            figure.text(0.5, 0.5, "no epoch yet", ha="center", color=QUIET)
    from matplotlib.image import imread

    file.seek(0)
    return np.rint(imread(file)[..., :3] * 255).astype(np.uint8)


class Window:
    """A window that shows frames. Needs pygame."""

    def __init__(self, title: str) -> None:
        try:
            import pygame
        except ImportError:
            raise EsperError(f"render_mode 'human' needs the package pygame: {GYM}") from None
        self.pygame: Any = pygame
        self.title, self.screen = title, None

    def show(self, picture: np.ndarray) -> None:
        """Show a frame."""
        size = picture.shape[1], picture.shape[0]
        if self.screen is None:
            self.pygame.display.init()
            self.screen = self.pygame.display.set_mode(size)
            self.pygame.display.set_caption(self.title)
        self.screen.blit(self.pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        self.pygame.event.pump()
        self.pygame.display.flip()

    def close(self) -> None:
        """Close the window, if it was opened."""
        if self.screen is not None:
            self.pygame.display.quit()
            self.screen = None
