"""Original text: the bytes of memory without the patches of the guest's own kprobes and without ours.

    memory ──► the guest's kprobes are looked through ──► our branches are ──► what is decoded
All code that decodes the guest's text reads it here. Where the kprobes cannot be listed, `missing` returns why: then
only a breakpoint instruction, or a jump to no known code, shows one, and nothing behind them is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import kprobes
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.kprobes import Kprobe
from gdb_optprobe.guest.text import Overlay
from gdb_optprobe.isa.record import Isa


class OriginalText:
    """An Overlay. It is valid until the guest runs: call `forget` then."""

    def __init__(self, kernel: Kernel, isa: Isa, overlay: Overlay | None = None) -> None:
        """Read through kprobes. overlay: replaces the branches of probes by the original bytes."""
        self._kernel = kernel
        self._isa = isa
        self._ours = overlay or (lambda _, data: data)
        self._known: tuple[Sequence[Kprobe], OptprobeError | None] | None = None

    def __call__(self, address: int, data: bytes) -> bytes:
        """Return the original bytes of `data`, which was read at `address` since the guest stopped."""
        return self._ours(address, kprobes.original(data, address, self._of(address, address + len(data))))

    def through(self, kernel: Kernel) -> OriginalText:
        """Return the same for a kernel that is read in another way."""
        return OriginalText(kernel, self._isa, self._ours)

    def find(self) -> None:
        """Find where and how the guest lists its kprobes: from then on only the lists are read for that."""
        kprobes.find(self._kernel)

    def read(self, start: int, end: int) -> bytes:
        """Return the original text from `start` to `end`."""
        return self(start, self._kernel.read(start, end))

    def kprobes(self, start: int, end: int) -> Sequence[Kprobe]:
        """Return the guest's kprobes, armed or not, that may write in [start, end), but not those on our branches."""
        return [probe for probe in self._of(start, end) if not self._is_on_ours(probe)]

    def check(self) -> None:
        """Raise OptprobeError where the guest's kprobes cannot be read."""
        if (error := self._look()[1]) is not None:
            raise error

    @property
    def missing(self) -> str:
        """Return why the guest's kprobes cannot be read, as text; "" where they can."""
        error = self._look()[1]
        return error.message if error is not None else ""

    def forget(self) -> None:
        """Drop what was read: the guest has run."""
        self._known = None

    def _of(self, start: int, end: int) -> Sequence[Kprobe]:
        return [probe for probe in self._look()[0] if probe.address < end and start < probe.end]

    def _look(self) -> tuple[Sequence[Kprobe], OptprobeError | None]:
        if self._known is None:
            try:
                self._known = kprobes.known(self._kernel, self._isa), None
            except OptprobeError as error:
                self._known = (), error
        return self._known

    def _is_on_ours(self, probe: Kprobe) -> bool:
        """Return whether it was put there while our branch was there: to the guest the branch is the original
        instruction.
        """
        data = kprobes.original(self._kernel.memory.read(probe.address, self._isa.branch_size), probe.address, [probe])
        return self._ours(probe.address, data) != data
