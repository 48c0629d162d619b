"""The names that a user may give registers, and where arguments are: an ISA's calling convention with C types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.btf import Btf, Enum, Int, Parameter, Pointer, Struct
from gdb_optprobe.handlers import ctype
from gdb_optprobe.handlers.ctype import LONG, UNSIGNED_INT, UNSIGNED_LONG, Function, Scalar
from gdb_optprobe.isa.abi import Holds, Part
from gdb_optprobe.isa.record import Isa


@dataclass(frozen=True, slots=True)
class Abi:
    """See isa.abi.Convention. registers: by name, the type that GDB gives them."""

    registers: Mapping[str, Scalar]
    parts: Mapping[str, Part]
    pc: str
    sp: str
    arguments: Sequence[str]
    stacked: int
    aggregate: int
    result: str
    signed_char: bool


_TYPES: Mapping[Holds, Scalar] = {
    Holds.SIGNED: LONG,
    Holds.UNSIGNED: UNSIGNED_LONG,
    Holds.CODE: ctype.Pointer(Function()),
    Holds.FLAGS: UNSIGNED_INT,
}


def of(isa: Isa) -> Abi:
    """Return an ISA's convention, in C's types."""
    found = isa.convention
    return Abi(
        registers={name: _TYPES[holds] for name, holds in found.registers.items()},
        parts=found.parts,
        pc=found.pc,
        sp=found.sp,
        arguments=found.arguments,
        stacked=found.stacked,
        aggregate=found.aggregate,
        result=found.result,
        signed_char=found.signed_char,
    )


def slots(parameters: Sequence[Parameter], btf: Btf, abi: Abi) -> Mapping[str, int]:
    """Return the first argument word of each parameter at the entry, by name; counted from 0, registers first.

    A small struct takes as many words as it fills, as every ABI here has it. A parameter that may
    be in memory, or is neither a struct nor a number nor a pointer, is left out, with all that follow it.
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
