"""Code from assembly that capstone reads back word for word, with constants of 8 bytes behind it.

A line is as capstone writes it; names are of places (`name:`) and of constants (`[rip + name]`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import capstone

from gdb_optprobe.isa.assemble import assemble, check

WORD = 8


@dataclass(frozen=True, slots=True)
class Assembled:
    """code: before its constants. places: how far in each name is."""

    code: bytes
    places: Mapping[str, int]

    def with_constants(self, numbers: Iterable[int]) -> bytes:
        """In the order of their names."""
        return self.code + b"".join(number.to_bytes(WORD, "little") for number in numbers)


def assembled(source: Iterable[str], constants: Sequence[str]) -> Assembled:
    """Raises OptprobeError where keystone cannot be loaded or is wrong."""
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
