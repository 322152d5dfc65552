"""Hold the weights of a fleet and run them: a stack of trunks, and a bucket for the seeds of each kind."""

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from esper.kasmina.hosts import build_host
from esper.kasmina.kernels import add, any_delta, route, spread, take, where
from esper.kasmina.layers import run_rows, under
from esper.kasmina.lifecycle import copied_slots
from esper.kasmina.slots import AnySeed
from esper.leyline.actions import TWIN, Graft
from esper.leyline.rng import Purpose, key
from esper.leyline.specs import HostSpec
from esper.leyline.state import NO_BLUEPRINT, SlotState
from esper.tolaria.assignment import Assignment, Kind, SlotAssignment
from esper.tolaria.bucket import Bucket
from esper.tolaria.lanes import Lanes
from esper.tolaria.padding import SHARES, Padding
from esper.tolaria.stack import Stack
from esper.tolaria.transfer import upload

Flats = dict[Kind | None, Tensor]
"""The flat rows of each bucket; those of the trunk under None."""


class Network:
    """The weights of N hosts of one spec and of their seeds. Kinds of seeds that no host has cost nothing."""

    def __init__(
        self, spec: HostSpec, num_hosts: int, device: torch.device, dtype: torch.dtype, room: int, patience: int
    ) -> None:
        template = build_host(spec)
        self.slots, self.space = template.slot_specs, template.space
        self.blocks, self.slots_each = template.blocks, spec.slots
        self.device, self.dtype, self.room = device, dtype, room
        self.patience = patience
        """Decisions after which an empty bucket is no longer run."""
        self.trunk = Stack(lambda: build_host(spec), num_hosts, device, dtype)
        self.buckets: dict[Kind, Bucket] = {}
        """Buckets that are run."""
        self.known: dict[Kind, Bucket] = {}
        """All buckets ever made: captured programs refer to their memory."""
        self.idle: dict[Kind, int] = {}
        self.lanes = Lanes(device)
        """Where seeds of different kinds run, and side rows beside the hosts."""

    @property
    def stacks(self) -> dict[Kind | None, Stack]:
        """The stack of each kind of seed; that of the trunk under None."""
        return {None: self.trunk} | {kind: bucket.stack for kind, bucket in self.buckets.items()}

    def bear(self, fresh: Bool[Tensor, " N"], rng_seeds: Int[Tensor, " N"]) -> None:
        """Draw new trunks for the `fresh` hosts."""
        rows = fresh.nonzero()[:, 0]
        self.trunk.bear(rows, key(rng_seeds[rows], Purpose.HOST_WEIGHTS))

    def tend(
        self,
        state: SlotState,
        fresh: Bool[Tensor, " N"] | None,
        rng_seeds: Tensor,
        padding: Padding,
        before: SlotState | None = None,
    ) -> None:
        """Give newborn seeds a row in their bucket and free the rows of removed seeds; `fresh` hosts keep none.

        Twins copy the block that was in front of their slot in the state `before`; without one, their weights are drawn
        like those of all others.
        """
        now = state.blueprint.cpu().numpy()
        renewed = np.zeros(len(now), bool) if fresh is None else fresh.cpu().numpy()
        for kind, bucket in self.buckets.items():
            bucket.release((now[:, kind.slot] == self.space.blueprints.index(kind.blueprint)) & ~renewed)
        slot, gated = torch.arange(len(self.slots), device=self.device), state.graft == Graft.GATE
        keys = key(rng_seeds[:, None], Purpose.SEED_WEIGHTS, slot, state.births)
        for s, b in np.unique(np.stack([np.indices(now.shape)[1], now], -1)[now != NO_BLUEPRINT], axis=0).tolist():
            kind = Kind(s, self.space.blueprints[b])
            if kind not in self.known:
                self.known[kind] = Bucket(kind, self.slots[s], self.device, self.dtype, self.room)
            bucket = self.buckets[kind] = self.known[kind]
            newborns = np.setdiff1d(np.flatnonzero(now[:, s] == b), bucket.hosts)
            if len(newborns):
                hosts = upload(newborns, self.device)
                room = padding((kind, "seeds"), int((bucket.hosts >= 0).sum()) + len(newborns), SHARES["seeds"])
                rows = bucket.admit(newborns, room)
                if kind.blueprint == TWIN and before is not None:
                    self.copy_blocks(bucket, rows, copied_slots(before, s, self.first_behind(s), b).cpu().numpy(), s)
                else:
                    bucket.bear(rows, keys[hosts, s], gated[hosts, s])
        self.idle = {
            kind: 0 if (b.hosts >= 0).any() else self.idle.get(kind, 0) + 1 for kind, b in self.buckets.items()
        }
        self.buckets = {kind: bucket for kind, bucket in self.buckets.items() if self.idle[kind] <= self.patience}

    def first_behind(self, slot: int) -> int:
        """Return the first slot behind the same segment."""
        return slot - slot % self.slots_each

    def copy_blocks(self, bucket: Bucket, rows: np.ndarray, copied: np.ndarray, slot: int) -> None:
        """Copy the block in front of a slot into rows of new twins: that of the segment, or an earlier twin.

        Args:
            bucket: Bucket of the new twins.
            rows: Their rows.
            copied: Slot of the twin that each host copies, (N,); -1: the segment's own block.
            slot: Slot of the new twins.
        """
        sources = copied[bucket.hosts[rows]]
        for source in map(int, np.unique(sources)):
            new = rows[sources == source]
            hosts = bucket.hosts[new]
            if source < 0:
                stack, theirs, block = self.trunk, hosts, f"{self.blocks[slot]}."
            else:
                earlier = self.buckets[Kind(source, TWIN)]
                row_of = np.zeros(len(copied), dtype=np.int64)
                row_of[earlier.hosts[earlier.hosts >= 0]] = np.flatnonzero(earlier.hosts >= 0)
                stack, theirs, block = earlier.stack, row_of[hosts], "f."
            bucket.stack.copy(bucket.at(new), stack, bucket.at(theirs), block)

    def forward(self, flats: Flats, x: Tensor, assignment: Assignment) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """Run all hosts and side rows.

        A side row starts at the slot of its seed, from a detached copy of the host's stream, with the seed switched: on
        if it is silent, off if it is audible. All other weights on its way are detached.

        Returns:
            The outputs of the hosts, (N, B, ...); those of the side rows; and the hosts' streams at their slots.
        """
        trunk = self.trunk.layout.unpack(flats[None])
        segments = self.trunk.template.segments
        assert isinstance(segments, nn.ModuleList)
        beside: Tensor | None = None
        streams = []
        for s, segment in enumerate(segments):
            prefix = f"segments.{s}."
            if beside is not None:
                with self.lanes.lane(0, beside):
                    rows = assignment.beside.rows[: len(beside)]
                    fixed = {name: p.detach()[rows] for name, p in under(prefix, trunk).items()}
                    beside = run_rows(segment, fixed, beside)
            x = run_rows(segment, under(prefix, trunk), x)
            if beside is not None:
                self.lanes.join(beside)
            for slot in assignment.slots[s * self.slots_each : (s + 1) * self.slots_each]:
                streams.append(x)
                if slot.buckets:
                    x, beside = self.graft(flats, x, beside, slot)
        return x, beside, streams

    def graft(
        self, flats: Flats, x: Tensor, beside: Tensor | None, assignment: SlotAssignment
    ) -> tuple[Tensor, Tensor | None]:
        """Graft the seeds of one slot onto their hosts and onto side rows, and start new side rows."""
        own, heard, echo = route(assignment.hosts, assignment.speaks, x), None, None
        stream, x = take(x, own)
        if beside is not None:
            echo = route(*assignment.echoes, beside)
            heard, beside = take(beside, echo)
        deltas, echoes = self.deltas(flats, stream, heard, assignment)
        x = add(x, own, assignment.alpha, deltas)
        if beside is not None and echo is not None and echoes is not None:
            beside = add(beside, echo, assignment.echo_alpha, echoes)
        seeds = assignment.spawns.rows
        if not len(seeds):
            return x, beside
        off = stream.detach()[seeds]
        on = off + spread(assignment.target[seeds], off) * deltas.index_select(0, seeds)
        start = where(assignment.speaks[seeds], off, on)
        return x, start if beside is None else torch.cat([beside, start])

    def deltas(
        self, flats: Flats, stream: Tensor, heard: Tensor | None, assignment: SlotAssignment
    ) -> tuple[Tensor, Tensor | None]:
        """Return the deltas of all seeds of a slot for their hosts' streams and, detached, for the side rows."""
        sizes = [(b.num_seeds, b.num_echoes) for b in assignment.buckets]
        streams, graft = stream, assignment.graft
        if heard is not None:
            streams, graft = (
                _shuffled(*pair, sizes) for pair in ((stream, heard), (assignment.graft, assignment.echo_graft))
            )
        bodies, gates = [], []
        inputs = streams.split([sum(size) for size in sizes])
        for n, (b, own) in enumerate(zip(assignment.buckets, inputs, strict=True)):
            with self.lanes.lane(n, own):
                stack, flat = self.buckets[b.kind].stack, flats[b.kind]
                rows = torch.cat([flat, flat.detach()[b.echo_seeds]]) if b.num_echoes else flat
                params, template = stack.layout.unpack(rows), stack.template
                assert isinstance(template, AnySeed)
                bodies.append(run_rows(template.f, under("f.", params), own).to(own.dtype))
                gates.append(under("g.", params))
        self.lanes.join(*bodies, *(p for params in gates for p in params.values()))
        gate = {name: torch.cat([params[name] for params in gates]) for name in gates[0]}
        deltas = any_delta(graft, streams, torch.cat(bodies), gate["weight"], gate["bias"])
        if heard is None:
            return deltas, None
        parts = deltas.split([size for pair in sizes for size in pair])
        return torch.cat(parts[::2]), torch.cat(parts[1::2])


def _shuffled(seeds: Tensor, echoes: Tensor, sizes: list[tuple[int, int]]) -> Tensor:
    """Interleave by bucket: its seeds, then its side rows."""
    own, other = seeds.split([a for a, _ in sizes]), echoes.split([b for _, b in sizes])
    return torch.cat([part for pair in zip(own, other, strict=True) for part in pair])
