"""What probes on user programs need of a guest. The lower layers fill it; tests fill it with fakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gdb_optprobe.guest.linux.user_kernel import UserKernel
from gdb_optprobe.probes.names import NamesAt


class Program(Protocol):
    """A file in the guest that is run. Addresses are those that it was linked for.

    bits:       32 or 64.
    pie:        it may be loaded anywhere.
    first_code: the address of its first code, which the kernel knows of every process.
    filler:     from where to where its code's pages have bytes that are nobody's.
    """

    @property
    def path(self) -> str: ...

    @property
    def inode(self) -> int: ...

    @property
    def bits(self) -> int: ...

    @property
    def pie(self) -> bool: ...

    @property
    def first_code(self) -> int: ...

    @property
    def filler(self) -> tuple[int, int]: ...

    def resolve(self, location: str) -> int:
        """SYMBOL, SYMBOL+OFFSET or a number, an offset in the file. Raises OptprobeError."""

    def spell(self, address: int) -> str: ...

    def function(self, address: int) -> tuple[int, int] | None: ...

    def text(self, address: int, size: int) -> bytes:
        """Its own bytes, whatever stands there in a process. Raises OptprobeError."""


class Texts(Protocol):
    """The text of programs in the processes that run them, now and later; the files' own bytes never change."""

    def program(self, path: str, host: Path | None) -> Program:
        """host: the same file where GDB runs. Raises OptprobeError."""

    def arm(self, program: Program, changes: Mapping[int, bytes]) -> None:
        """Write, in this order; in every process, and in those to come. Raises OptprobeError, all as it was."""

    def disarm(self, program: Program, addresses: Sequence[int]) -> None:
        """The program's own bytes are there again. Raises OptprobeError with what has to be left."""

    def problems(self) -> Sequence[str]:
        """Where a process does not have what was written, in words."""

    def abandon(self) -> None:
        """The guest is gone."""


@dataclass(frozen=True, slots=True)
class UserTarget:
    """names: what they mean in a program, by the address, whether it is a function's entry, and the program's bits."""

    kernel: UserKernel
    names: Callable[[int, bool, int], NamesAt]
    texts: Texts
