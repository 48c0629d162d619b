"""The second opinion on decoding: binutils' disassembler."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

import pytest

from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.ppc64le import PPC64LE

OBJDUMP = "powerpc64le-linux-gnu-objdump"
needs_binutils = pytest.mark.skipif(
    shutil.which(OBJDUMP) is None, reason=f"no {OBJDUMP}: install binutils-powerpc64le-linux-gnu"
)
_LINE = re.compile(r"\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*\t?(.*)")


def disassembled(data: bytes, address: int = 0, options: str = "power10,raw") -> dict[int, tuple[int, str]]:
    """Size and text by address; `.long` where binutils sees no instruction."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        command = [OBJDUMP, "-D", "-z", "-b", "binary", "-m", "powerpc:common64", "-EL", f"-M{options}"]
        command += [f"--adjust-vma={address:#x}", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[int, tuple[int, str]] = {}
    last = 0
    for line in shown.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        at, size, text = int(match[1], 16), len(match[2].split()), match[3]
        if text:
            found[at], last = (size, re.sub(r"\s+#.*| <.*", "", text)), at
        else:  # the second line of a prefixed instruction
            found[last] = (found[last][0] + size, found[last][1])
    return found


def words(numbers: Sequence[int]) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def decode_each(data: bytes, address: int = 0, size: int = 4) -> list[Insn | None]:
    """What we make of each piece of `size` bytes, alone."""
    found: list[Insn | None] = []
    for at in range(0, len(data), size):
        insns = PPC64LE.decode(data[at : at + size], address + at)
        found.append(insns[0] if insns else None)
    return found
