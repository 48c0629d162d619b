"""Fixed pieces of code, assembled once by keystone and decoded again by capstone.

keystone sees only the sources here and those that `assembled` is given, no text of a user. Numbers go
in afterwards, over a marker:

    "lock inc qword ptr [rip + 0x11223344]"  ──keystone──►  f0 48 ff 05 44 33 22 11
                                                                         └─ number ─┘
keystone assembles some text wrongly without an error, so its code is used only if capstone reads
the same instruction back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import capstone

from gdb_optprobe.isa.assemble import assemble, check

MARKER = 0x11223344
_MARKER = MARKER.to_bytes(4, "little")

# Intel syntax, written as capstone writes it.
SOURCES = {
    "count": "lock inc qword ptr [rip + 0x11223344]",
    "save_flags": "pushfq",
    "restore_flags": "popfq",
}


@dataclass(frozen=True, slots=True)
class Template:
    """data: the code. number: offset of the 32-bit number that varies, -1 if there is none."""

    data: bytes
    number: int

    @property
    def size(self) -> int:
        return len(self.data)

    def filled(self, number: int) -> bytes:
        return self.data[: self.number] + number.to_bytes(4, "little", signed=True) + self.data[self.number + 4 :]


@cache
def templates() -> dict[str, Template]:
    """Return all templates by name. Raises OptprobeError if keystone cannot be loaded or is wrong."""
    code = assemble("; ".join(SOURCES.values()), "KS_ARCH_X86", "KS_MODE_64")
    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    found: dict[str, Template] = {}
    at = 0
    for name, source in SOURCES.items():
        _, size, mnemonic, operands = next(engine.disasm_lite(code[at : at + 15], 0, 1), (0, 0, "nothing", ""))
        check(source, source, mnemonic, operands)
        found[name] = Template(code[at : at + size], code[at : at + size].find(_MARKER))
        at += size
    return found


WORD = 8


@dataclass(frozen=True, slots=True)
class Assembled:
    """Assembled code. code: without its constants. places: the offset of each name."""

    code: bytes
    places: Mapping[str, int]

    def with_constants(self, numbers: Iterable[int]) -> bytes:
        """Return the code with its constants, in the order of their names."""
        return self.code + b"".join(number.to_bytes(WORD, "little") for number in numbers)


def assembled(source: Iterable[str], constants: Sequence[str]) -> Assembled:
    """Assemble lines of source. Raises OptprobeError if keystone cannot be loaded or is wrong."""
    lines = [line.strip() for line in source]
    code = assemble("\n".join([*lines, *(f"{name}: .quad 0" for name in constants)]), "KS_ARCH_X86", "KS_MODE_64")
    code = code[: -WORD * len(constants)]
    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    at, places = 0, dict[str, int]()
    for line in lines:
        if line.endswith(":"):
            places[line[:-1]] = at
            continue
        _, size, mnemonic, operands = next(engine.disasm_lite(code[at : at + 15], 0, 1), (0, 0, "nothing", ""))
        check(line, _without_places(line), *_without_places(f"{mnemonic} {operands}").partition(" ")[::2])
        at += size
    return Assembled(code, places)


def _without_places(line: str) -> str:
    return re.sub(r"^(call|j\w+) .*|rip \+ \w+", lambda found: found[1] or "rip", line)
