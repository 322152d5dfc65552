"""Pad row counts, so that one captured program serves many assignments."""

from collections.abc import Callable, Hashable

Padding = Callable[[Hashable, int, float], int]
"""Returns the number of rows to run for a name, a count of real rows, and the share of hosts that usually need one."""
SHARES = {"seeds": 1 / 8, "incubators": 3 / 8, "counterfactuals": 5 / 8, "echoes": 1 / 16, "measured echoes": 1 / 8}


def exact(what: Hashable, count: int, share: float) -> int:
    """Return the count itself, but 2 instead of 1: a single row takes another path through bmm, with other bits."""
    return max(count, 2) if count else 0


class Roomy:
    """Padding with spare rows, so that shapes rarely change when seeds are planted or pruned.

    Sizes grow when they must. At ever longer intervals, sizes that were far too large since the last one shrink.
    """

    def __init__(self, num_hosts: int, epochs: int = 25) -> None:
        self.num_hosts, self.next_fit, self.age = num_hosts, epochs, 0
        self.rooms: dict[Hashable, int] = {}
        self.needed: dict[Hashable, int] = {}

    def __call__(self, what: Hashable, count: int, share: float) -> int:
        self.needed[what] = max(self.needed.get(what, 0), count)
        if self.rooms.get(what, -1) < count:
            self.rooms[what] = self.fit(max(count, int(share * self.num_hosts)))
        return self.rooms[what]

    def fit(self, count: int) -> int:
        """Round up to a power of two, or to a multiple of an eighth of all hosts."""
        eighth = max(self.num_hosts // 8, 2)
        return max(2, power_of_two(count) if count <= eighth else -(-count // eighth) * eighth)

    def grow_older(self) -> None:
        """Count one epoch, and shrink sizes if it is time."""
        self.age += 1
        if self.age == self.next_fit:
            self.rooms = {what: min(self.rooms[what], self.fit(2 * count)) for what, count in self.needed.items()}
            self.next_fit, self.needed = 2 * self.age, {}


def power_of_two(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
