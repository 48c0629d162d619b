"""The text of Debian's stock kernel: an ELF file as it is, with symbols."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pytest

from gdb_optprobe.isa.base import Insn
from gdb_optprobe.isa.ppc64le import PPC64LE
from qemu.debian import FetchError
from qemu.kernels import stock_kernel

PACKAGE, ARCH = "linux-image-powerpc64le", "ppc64el"


@dataclass(frozen=True)
class Kernel:
    """base, text: of the section .text. functions: start and size of each, ascending."""

    base: int
    text: bytes
    functions: tuple[tuple[int, int], ...]

    def code(self, start: int, size: int) -> bytes:
        return self.text[start - self.base : start - self.base + size]

    def function(self, start: int, size: int) -> Mapping[int, Insn]:
        """Its instructions by address; what is no instruction (tables of jumps) is left out."""
        found: dict[int, Insn] = {}
        data, at = self.code(start, size), 0
        while at < len(data):
            insns = PPC64LE.decode(data[at:], start + at)
            found |= {insn.address: insn for insn in insns}
            at = insns[-1].end - start if insns else at + 4
        return found

    def words(self) -> list[tuple[int, bytes]]:
        """(address, the eight bytes there) of every word of every function."""
        return [
            (at, self.text[at - self.base : at - self.base + 8])
            for start, size in self.functions
            for at in range(start, start + size & ~3, 4)
        ]


@cache
def _read() -> Kernel | str:
    try:
        data = stock_kernel(PACKAGE, ARCH).image.read_bytes()
    except FetchError as error:
        return str(error)
    start, number, names_at = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * index) for index in range(number)]
    names = data[headers[names_at][4] :]
    sections = {names[header[0] : names.index(b"\0", header[0])].decode(): header for header in headers}
    _, _, _, base, offset, size, *_ = sections[".text"]
    _, _, _, _, at, length, *_ = sections[".symtab"]
    index = list(sections).index(".text")
    symbols = struct.iter_unpack("<IBBHQQ", data[at : at + length])
    found = {value: size for _, info, _, where, value, size in symbols if info & 15 == 2 and where == index and size}
    return Kernel(base, data[offset : offset + size], tuple(sorted(found.items())))


def kernel() -> Kernel:
    """Skips the test where there is none."""
    found = _read()
    if isinstance(found, str):
        pytest.skip(f"no {PACKAGE}: {found}")
    return found
