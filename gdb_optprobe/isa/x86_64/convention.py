"""Registers and arguments as users of GDB name them."""

from __future__ import annotations

from gdb_optprobe.isa.convention import Convention, Holds, Part
from gdb_optprobe.isa.x86_64 import abi

_LEGACY = {"rax": "a", "rbx": "b", "rcx": "c", "rdx": "d"}
_INDEX = ("rsi", "rdi", "rbp", "rsp")


def _parts() -> dict[str, Part]:
    """As GDB names them: eax, ax, al, ah, sil, r8d, r8w, r8l."""
    found: dict[str, Part] = {}
    for name in abi.GENERAL:
        if name in _LEGACY:
            letter = _LEGACY[name]
            names = (f"e{letter}x", f"{letter}x", f"{letter}l")
            found[f"{letter}h"] = Part(name, 8, 8)
        elif name in _INDEX:
            names = (f"e{name[1:]}", name[1:], f"{name[1:]}l")
        else:
            names = (f"{name}d", f"{name}w", f"{name}l")
        # `sp` is the stack pointer itself to GDB.
        found.update({part: Part(name, 0, bits) for part, bits in zip(names, (32, 16, 8), strict=True) if part != "sp"})
    return found


CONVENTION = Convention(
    registers={
        **dict.fromkeys(abi.GENERAL, Holds.SIGNED),
        **dict.fromkeys(("rsp", "rbp"), Holds.UNSIGNED),
        abi.PC: Holds.CODE,
        abi.FLAGS: Holds.FLAGS,
    },
    parts=_parts(),
    pc=abi.PC,
    sp=abi.SP,
    arguments=abi.ARGUMENTS,
    stacked=abi.STACKED_ARGUMENTS,
    aggregate=16,
    result=abi.RETURN_VALUES[0],
    signed_char=True,
)
