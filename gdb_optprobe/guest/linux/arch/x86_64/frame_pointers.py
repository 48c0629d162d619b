"""Backtraces of a kernel that keeps frame pointers instead of ORC tables (CONFIG_UNWINDER_FRAME_POINTER)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gdb_optprobe.guest.linux.arch.x86_64 import frame_pointer_unwind, orc_unwind
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.text import Function, Text
from gdb_optprobe.isa.base import ReadMemory

# Functions in C that call others, wherever a kernel has been configured away.
WITNESSES = ("schedule", "do_exit", "vfs_read", "vfs_write", "ksys_read", "wake_up_process", "kernel_clone")
FEWEST = 3


@dataclass(frozen=True, slots=True)
class FramePointers:
    """Unwind by the chain of rbp and the code of the innermost function. text: the image's, from its start to its end.
    """

    text: tuple[int, int]
    code: Text
    read: ReadMemory
    how = "frame pointers"

    def knows(self, pc: int) -> bool:
        return self.text[0] <= pc < self.text[1] or self.code.function(pc) is not None

    def caller(self, registers: Mapping[str, int], exact: bool) -> tuple[Mapping[str, int], bool] | None:
        found = frame_pointer_unwind.unwind(orc_unwind.State(registers, exact=exact), self._function, self.read)
        return (found.registers, found.exact) if found is not None else None

    def over(self, read: ReadMemory) -> FramePointers:
        return replace(self, read=read)

    def _function(self, pc: int) -> frame_pointer_unwind.Code | None:
        found = self.code.function(pc)
        return (found.start, found.own) if found is not None else None


def unwinder(kernel: Kernel, text: Text, read: ReadMemory) -> FramePointers:
    """Return the unwinder. Raises OptprobeError where this kernel's functions keep no frame pointers."""
    addresses = (kernel.symbols.address(name) for name in WITNESSES)
    found = [function for at in addresses if at is not None and (function := text.function(at)) is not None]
    made = sum(frame_pointer_unwind.makes_frame(each.start, each.own) for each in found)
    # One that carries a branch cannot be decoded.
    if made < FEWEST or 2 * made <= len(found):
        raise NoSuchKernel("this kernel has neither ORC tables nor frame pointers")
    return FramePointers((kernel.address("_stext"), kernel.address("_etext")), text, read)


def is_called(function: Function) -> bool:
    """Return whether a function makes a frame: it is entered with a return address and returns to it."""
    start, own = function.start, function.own
    return frame_pointer_unwind.makes_frame(start, own) and frame_pointer_unwind.balanced(start, own)


def has_tables(kernel: Kernel) -> bool:
    """Return whether this kernel has ORC tables."""
    return kernel.range("__start_orc_unwind_ip", "__stop_orc_unwind_ip") != (0, 0)
