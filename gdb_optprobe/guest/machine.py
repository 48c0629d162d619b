"""The interface of the running guest. `debugger/machine.py` implements it through GDB, tests with fakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Vcpu:
    """One virtual CPU: `number` as QEMU counts (from 0), `name` as GDB shows its thread ("1.1")."""

    number: int
    name: str


class Readable(Protocol):
    """Memory that is read. Raises errors.Unreadable."""

    def read(self, address: int, size: int) -> bytes: ...


class Memory(Readable, Protocol):
    """Kernel memory by virtual address, whatever each vCPU is doing. Raises errors.Unreadable."""

    def write(self, address: int, data: bytes) -> None: ...


@runtime_checkable
class ReadsMany(Protocol):
    """Memory that can be read at thousands of places at once."""

    def read_many(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return what memory holds in each of `spans`, ascending (start, end) pairs. Raises Unreadable."""

    def read_each(self, places: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Return the same of small `places` near each other; None where they are better read as runs."""


Changed = Callable[[], object]


@runtime_checkable
class HasImages(Protocol):
    """Memory of which much can be had at once."""

    def image(self, start: int, end: int, changed: Changed | None = None) -> Readable | None:
        """Return what memory holds from `start` to `end` now, to be read from; None where it is not had at once.

        changed: called once, before the next write there.
        """


class PhysicalMemory(Protocol):
    """Guest-physical memory. Raises errors.Unreadable."""

    def read_physical(self, address: int, size: int) -> bytes: ...

    def write_physical(self, address: int, data: bytes) -> None: ...


@runtime_checkable
class SwitchesMode(Protocol):
    """Physical memory for which something is switched at each access."""

    def physical_mode(self) -> AbstractContextManager[None]:
        """Leave it switched within the block, in which nothing else is asked for."""


def physically(memory: PhysicalMemory) -> AbstractContextManager[None]:
    """Return a block in which only physical memory is accessed, some more times."""
    return memory.physical_mode() if isinstance(memory, SwitchesMode) else nullcontext()


class Machine(Memory, PhysicalMemory, Protocol):
    """A guest stopped under a debugger; every verb but `step_out` and `run_until` leaves it stopped and unmoved.
    """

    @property
    def runs(self) -> bool:
        """Return whether the guest runs now, within a block of `reading`."""

    def reading(self, live: Memory) -> AbstractContextManager[None]:
        """Read by `live` within the block, while the guest runs. What asks for more of the guest raises NeedsStop."""

    def vcpus(self) -> Sequence[Vcpu]: ...

    def selected(self) -> Vcpu:
        """Return the vCPU with the cheapest register reads: the user's, or the one that stopped."""

    def registers(self, vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
        """Return general and control registers, unsigned; "cpl" is the privilege level where there is one."""

    def write_registers(self, vcpu: Vcpu, values: Mapping[str, int]) -> None: ...

    def translates_pages(self) -> bool:
        """Return whether QEMU translates addresses itself (TCG): page by page, with no processor's cache involved."""

    def step_out(self, pc: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Single-step each vCPU that is in one of `ranges` until it is not. pc: the name of the register."""

    def run_until(self, addresses: Sequence[int], timeout: float) -> Vcpu | None:
        """Run every vCPU until one is about to execute one of `addresses`; None when `timeout` seconds pass first.

        The guest is stopped again in both cases; breakpoints set for this are gone.
        """
