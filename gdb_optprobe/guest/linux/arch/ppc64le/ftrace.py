"""A tracer's site: the second of `mflr r0; nop`; its record is that of struct dyn_arch_ftrace too."""

from __future__ import annotations

from struct import Struct

from gdb_optprobe.guest.linux.ftrace_sites import Shape

SITE = Shape(bytes.fromhex("00000060"), Struct("<QQQ"))
