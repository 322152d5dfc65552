"""Flags that name a Ray cluster."""

from dataclasses import dataclass
from typing import Annotated

from esper.cli.flags import Flag, optional
from esper.leyline.errors import EsperError


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Whether Ray does the work, and which one."""

    ray: Flag = False
    """Let Ray do the work, in processes that it may lose (pip install 'esper-nn[ray]')."""
    address: Annotated[str | None, optional("ADDRESS", "RAY_ADDRESS, or a Ray of this machine alone")] = None
    """Address of a Ray cluster, whose machines share the disk of the run folders."""

    def check(self) -> None:
        """Raise an error if an address is given without --ray, or Ray is asked for and is not installed."""
        if self.address and not self.ray:
            raise EsperError("--address is that of a Ray cluster: add --ray")
        if self.ray:
            from esper.jobs.ray_tasks import require_ray

            require_ray()
