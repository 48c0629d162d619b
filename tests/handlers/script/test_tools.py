"""The tools that Debian ships with bpftrace: each compiles, by the types of a real kernel. They are fetched, not kept.

`python -m tests.handlers.script.test_tools` prints the table.
"""

from __future__ import annotations

import lzma
import struct
from collections.abc import Iterator
from functools import cache

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.btf import Btf
from gdb_optprobe.guest.types import BtfTypes
from gdb_optprobe.handlers.ir import Constant, Program, Records
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.handlers.script.compile import Script, compile_script
from gdb_optprobe.handlers.script.settings import Settings
from gdb_optprobe.isa.x86_64.codegen import BACKEND
from gdb_optprobe.maps.ring import RingLayout
from qemu import bpftrace_guest, debian
from qemu.kernels import stock_kernel
from tests.handlers.running import CODE, FAULTS, READERS
from tests.handlers.script.kernel import FakeKernel

pytestmark = pytest.mark.thorough

SUITES = {"bookworm": 38, "trixie": 39}
"""By suite, how many tools its package has."""
KERNEL = "linux-image-amd64"
"""One that is compressed by what Python knows."""
ON_HOST = ("BEGIN", "END", "interval")
_XZ = b"\xfd7zXZ\0"


def tools(suite: str) -> dict[str, str]:
    """Return the tools of a suite's package by their names. FetchError where it cannot be had."""
    return {path.name: path.read_text() for path in bpftrace_guest.tools(suite).values()}


@cache
def types() -> BtfTypes:
    """Return the types of a stock kernel. FetchError where it cannot be had."""
    image = stock_kernel(KERNEL, "amd64").image.read_bytes()
    kernel = lzma.LZMADecompressor().decompress(image[image.index(_XZ) :])
    return BtfTypes(Btf(_section(kernel, b".BTF")))


def _section(elf: bytes, name: bytes) -> bytes:
    """Return a section of an ELF file of 64 bits."""
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    count, names = struct.unpack_from("<HH", elf, 0x3C)
    rows = [struct.unpack_from("<IIQQQQ", elf, headers + 64 * at) for at in range(count)]
    for row in rows:
        start = rows[names][4] + row[0]
        if elf[start : elf.index(b"\0", start)] == name:
            return elf[row[4] : row[4] + row[5]]
    raise ValueError(f"no section {name!r}")


def compiled(text: str) -> Script:
    return compile_script(text, FakeKernel(types()))


@pytest.mark.parametrize("suite", SUITES)
def test_every_tool_compiles(suite: str) -> None:
    try:
        found = tools(suite)
        types()
    except debian.FetchError as error:
        pytest.skip(str(error))
    assert len(found) == SUITES[suite]
    refused = {name: trouble for name, text in found.items() if (trouble := _trouble(text))}
    assert not refused


def _trouble(text: str) -> str:
    try:
        script = compiled(text)
    except OptprobeError as error:
        return error.message
    assert script.probes and all(probe.program.quiet for probe in script.probes)
    return ""


@pytest.mark.parametrize("suite", SUITES)
def test_every_program_of_a_tool_has_native_code(suite: str) -> None:
    """What runs in the guest; strings have 64 bytes, as in 0.17."""
    try:
        found = tools(suite)
        types()
    except debian.FetchError as error:
        pytest.skip(str(error))
    scripts = (compile_script(text, FakeKernel(types()), settings=Settings(max_strlen=64)) for text in found.values())
    probes = [each for script in scripts for each in script.probes if each.point.provider not in ON_HOST]
    assert len(probes) > 100
    for probe in probes:
        assert lower(probe.program, _around(probe.program), BACKEND)(CODE)


def _around(program: Program) -> LoweringContext:
    records = [each.size for each in program.objects if isinstance(each, Records)]
    return LoweringContext(
        address=CODE,
        objects=tuple(FAULTS + 8 for _ in program.objects),
        faults=FAULTS,
        per_cpu=0,
        ring=RingLayout(max([8, *records]) // 8, 9),
        cpu=Constant(0),
        readers=READERS,
        maps={each.name: FAULTS + (at << 24) for at, each in enumerate(program.maps)},
    )


def table() -> Iterator[str]:
    """Yield a row for each tool: suite, name, probes, maps, records, or why it is refused."""
    for suite in SUITES:
        for name, text in tools(suite).items():
            trouble = _trouble(text)
            script = None if trouble else compiled(text)
            what = trouble.splitlines()[0] if script is None else (
                f"{len(script.probes)} probes, {len(script.maps)} maps, {len(script.requests)} kinds of records"
            )
            yield f"{suite:9} {name:20} {what}"


if __name__ == "__main__":
    print("\n".join(table()))
