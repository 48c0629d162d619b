"""One probe: what was asked for and what it has counted."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.probes.spec import Spec


@dataclass(slots=True)
class Probe:
    """A probe that a user added.

    seen:    hits counted by us while the guest was stopped; those counted in the guest are in `counter`.
    counter: its 8 bytes in guest memory, once it has been optimized.
    """

    number: int
    spec: Spec
    address: int
    enabled: bool = True
    seen: int = 0
    counter: Slot | None = None

    @property
    def has_python_handler(self) -> bool:
        return self.spec.pre_handler is not None or self.spec.post_handler is not None
