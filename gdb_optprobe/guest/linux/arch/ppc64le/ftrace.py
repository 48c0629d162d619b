"""An ftrace site of ppc64le: the second instruction of `mflr r0; nop`. Its record has a struct dyn_arch_ftrace too."""

from __future__ import annotations

from struct import Struct

from gdb_optprobe.guest.linux.ftrace_sites import Shape

ENTERED = bytes.fromhex("a602087c")
"""`mflr r0`: the instruction before the site, the first of a function behind its TOC. Nothing compares or rewrites it.
"""
SITE = Shape(bytes.fromhex("00000060"), Struct("<QQQ"))
