"""An ftrace site of aarch64: the second of the two instructions that a function begins with, `mov x9, x30; nop`.

    +0  mov x9, x30     written at boot, and never looked at again: a branch there leaves the tracer alone
    +4  nop             the record's address; `bl ftrace_caller` while it is traced, and compared before it changes
"""

from __future__ import annotations

from struct import Struct

from gdb_optprobe.guest.linux.ftrace_sites import Shape
from gdb_optprobe.isa.aarch64.fields import NOP, to_bytes

ENTERED = to_bytes(0xAA1E_03E9)
SITE = Shape(to_bytes(NOP), Struct("<QQ"))
