"""Known faults, brought back one at a time, to prove that the simulator finds such things.

Every mutation undoes one protection of the product. Most of these faults have been in this project
once, or in its first design; the others are what people most often write in their place.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tests.chaos.simulator.faults import WorldKind

ANYWHERE: tuple[WorldKind, ...] = ("disk", "shared", "store")


@dataclass(frozen=True)
class Mutation:
    """One fault of the product.

    Attributes:
        name: What is wrong.
        patches: Dotted name -> what stands in its place.
        kinds: What goes wrong in the world in schedules that may show it; see `schedules.KINDS`.
        worlds: Where it may show.
        rare: Whether ten schedules do not show it; see `results/simulator.md`.
    """

    name: str
    patches: dict[str, Any] = field(repr=False)
    kinds: tuple[str, ...]
    worlds: tuple[WorldKind, ...] = ANYWHERE
    rare: bool = False

    def applied(self) -> list[AbstractContextManager[Any]]:
        """The patches, to be entered."""
        return [patch(target, value) for target, value in self.patches.items()]
