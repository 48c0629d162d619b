"""Sourced into GDB by tests: the kernel is asked for blocks of 1 MiB at most, as if its memory were in small pieces."""

from __future__ import annotations

from dataclasses import replace

from gdb_optprobe.guest.linux.arch.ppc64le import linear_window
from gdb_optprobe.guest.linux.arch.x86_64 import arch
from gdb_optprobe.guest.linux.arch.x86_64.data_window import DataWindow
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.machine import Machine


def window(machine: Machine, kernel: Kernel) -> DataWindow:
    return replace(DataWindow(machine, kernel), orders=(8, 7), whole=8)


arch.DataWindow = window  # type: ignore[attr-defined]
linear_window.LARGEST = linear_window.WHOLE = 1 << 20
