"""Sourced into GDB by tests: no padding is found in the text of any kernel."""

from __future__ import annotations

from gdb_optprobe.guest.linux.arch.x86_64 import image_padding
from gdb_optprobe.guest.linux.arch.x86_64.image_padding import Range
from gdb_optprobe.guest.linux.kernel import Kernel


def nothing(kernel: Kernel) -> list[Range]:
    return []


image_padding.spans = nothing
