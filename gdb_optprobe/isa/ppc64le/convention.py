"""Registers and arguments as users of GDB name them."""

from __future__ import annotations

from gdb_optprobe.isa.convention import Convention, Holds
from gdb_optprobe.isa.ppc64le import abi

CONVENTION = Convention(
    registers={
        **dict.fromkeys(abi.GENERAL, Holds.UNSIGNED),
        abi.PC: Holds.CODE,
        abi.LR: Holds.CODE,
        abi.CTR: Holds.UNSIGNED,
        abi.FLAGS: Holds.FLAGS,
        abi.XER: Holds.FLAGS,
    },
    parts={},
    pc=abi.PC,
    sp=abi.SP,
    arguments=abi.ARGUMENTS,
    stacked=abi.STACKED_ARGUMENTS,
    aggregate=64,
    result=abi.RETURN_VALUES[0],
    signed_char=False,
)
