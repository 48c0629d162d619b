"""What a user may call registers, and where arguments are: by the ISA, from its ABI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.btf import Btf, Enum, Int, Parameter, Pointer, Struct
from gdb_optprobe.handlers import ctype
from gdb_optprobe.handlers.ctype import LONG, UNSIGNED_INT, UNSIGNED_LONG, Function, Scalar
from gdb_optprobe.isa.ppc64le import abi as ppc64le
from gdb_optprobe.isa.x86_64 import abi as x86_64


@dataclass(frozen=True, slots=True)
class Part:
    """A name of a part of a register: its lowest bit, and how many it has."""

    register: str
    shift: int
    bits: int


@dataclass(frozen=True, slots=True)
class Abi:
    """registers: by name, the type that GDB gives them.

    parts:       names of parts of registers.
    arguments:   registers of a function's first ones. stacked: where the next one is at its entry, from sp.
    aggregate:   bytes of the largest struct that is passed in registers.
    result:      register of what a function returns.
    signed_char: whether a plain char is signed.
    """

    registers: Mapping[str, Scalar]
    parts: Mapping[str, Part]
    pc: str
    sp: str
    arguments: Sequence[str]
    stacked: int
    aggregate: int
    result: str
    signed_char: bool


_CODE = ctype.Pointer(Function())
_LEGACY = {"rax": "a", "rbx": "b", "rcx": "c", "rdx": "d"}
_INDEX = ("rsi", "rdi", "rbp", "rsp")


def _x86_parts() -> dict[str, Part]:
    """As GDB names them: eax, ax, al, ah, sil, r8d, r8w, r8l."""
    found: dict[str, Part] = {}
    for name in x86_64.GENERAL:
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


X86_64 = Abi(
    registers={
        **dict.fromkeys(x86_64.GENERAL, LONG),
        **dict.fromkeys(("rsp", "rbp"), UNSIGNED_LONG),
        x86_64.PC: _CODE,
        x86_64.FLAGS: UNSIGNED_INT,
    },
    parts=_x86_parts(),
    pc=x86_64.PC,
    sp=x86_64.SP,
    arguments=x86_64.ARGUMENTS,
    stacked=x86_64.STACKED_ARGUMENTS,
    aggregate=16,
    result=x86_64.RETURN_VALUES[0],
    signed_char=True,
)

PPC64LE = Abi(
    registers={
        **dict.fromkeys(ppc64le.GENERAL, UNSIGNED_LONG),
        ppc64le.PC: _CODE,
        ppc64le.LR: _CODE,
        ppc64le.CTR: UNSIGNED_LONG,
        ppc64le.FLAGS: UNSIGNED_INT,
        ppc64le.XER: UNSIGNED_INT,
    },
    parts={},
    pc=ppc64le.PC,
    sp=ppc64le.SP,
    arguments=ppc64le.ARGUMENTS,
    stacked=ppc64le.STACKED_ARGUMENTS,
    aggregate=64,
    result=ppc64le.RETURN_VALUES[0],
    signed_char=False,
)


def of(isa: str) -> Abi:
    """For the instruction set `isa`, as isa/ names it. Raises OptprobeError."""
    if isa == "i386:x86-64":
        return X86_64
    if isa == "powerpc:common64":
        return PPC64LE
    raise OptprobeError(f"functions of {isa} are not known")


def slots(parameters: Sequence[Parameter], btf: Btf, abi: Abi) -> Mapping[str, int]:
    """By name: which of the words for arguments, from 0, registers first, is a parameter's first at the entry.

    A small struct takes as many words as it fills (System V ABI AMD64, 3.2.3; ELFv2 ABI, 2.2.3.2). Nothing is told of
    one that may be in memory, or is neither a struct nor a number nor a pointer; nor of what follows it.
    """
    found: dict[str, int] = {}
    at = 0
    for parameter in parameters:
        match btf.resolve(parameter.type):
            case Int(size=size) | Enum(size=size) if size <= 8:
                found[parameter.name] = at
                at += 1
            case Pointer():
                found[parameter.name] = at
                at += 1
            case Struct(size=size) if size <= abi.aggregate and at + -(-size // 8) <= len(abi.arguments):
                found[parameter.name] = at
                at += -(-size // 8)
            case _:
                break
    return found
