"""Where a function of a program returns: all of it is known, or the function is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.mmu import KIND
from gdb_optprobe.guest.linux.arch.aarch64.user_returns import ArmReturning
from gdb_optprobe.guest.linux.arch.aarch64.user_stops import Stopping
from gdb_optprobe.guest.linux.arch.aarch64.user_traps import ArmUser
from gdb_optprobe.guest.linux.user.elf import Elf
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.probes.user import exits
from tests.booted.assembled import assembled

TRAPS = ArmUser(0, Stopping(0, has_pan=False))
LEAVING = ArmReturning(TRAPS).leaving
assert LEAVING is not None
FRAME = "stp x29, x30, [sp, #-16]!\n"
RETURNS = "ldp x29, x30, [sp], #16\nret\n"
OTHERS = """
.type other, @function
other: ret
.size other, . - other
.type f.cold, @function
f.cold: bl other
        b 9f
        brk #1
.size f.cold, . - f.cold
.global _start
_start: ret
"""

MISALIGNED = """
.type other, @function
other: ret
.size other, . - other
.type f.cold, @function
.byte 0, 0
f.cold: .byte 0, 0
8: b 9f
.size f.cold, . - f.cold
.balign 4
.global _start
_start: ret
"""
UNKNOWN = ".word 0xffffffff\n"
"""No instruction."""

Found = Callable[..., list[int]]


@pytest.fixture
def found(tmp_path: Path) -> Found:
    """The words of a function that are its exits."""

    def find(body: str, others: str = OTHERS) -> list[int]:
        cold = others if "9:" in body else others.replace("b 9f", "ret")
        source = f".arch armv8.3-a\n.type f, @function\nf:\n{body}\n.size f, . - f\n" + cold.replace("9f", "9b")
        data = assembled(tmp_path / "program", source, "aarch64").read_bytes()
        elf = Elf.of("program", lambda offset, size: data[offset : offset + size], len(data), KIND)
        program = Program(File("/program", 1, 1, 1, len(data), 1), elf)
        entry = program.resolve("f")
        assert LEAVING is not None
        return [(at - entry) // 4 for at in exits.exits(program, entry, TRAPS, LEAVING)]

    return find


@pytest.mark.parametrize(
    ("body", "places"),
    [
        (FRAME + RETURNS, [2]),
        ("cbz x0, 1f\nret\n1: nop\nret", [1, 3]),
        (FRAME + "1: subs x0, x0, #1\nb.ne 1b\nblr x1\n" + RETURNS, [5]),
        (FRAME + "cbz x0, 1f\n" + RETURNS + "1: bl other", [3]),  # what it calls there never returns
        (FRAME + "b 1f\n.word 0xd65f03c0\n1: " + RETURNS, [4]),  # data are none
        (FRAME + "svc #0\nbrk #1\nret", []),
        (FRAME + "cbz x0, f.cold\n9: " + RETURNS, [3]),
    ],
)
def test_all_returns_that_its_code_comes_to(found: Found, body: str, places: list[int]) -> None:
    if places:
        assert found(body) == places
        return
    with pytest.raises(OptprobeError, match="never returns"):
        found(body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("nop\nb other", "program:f continues at program:other"),
        (FRAME + "cbz x0, other\n" + RETURNS, "program:f continues at program:other"),
        ("nop\nnop", "program:f continues at program:other"),
        (FRAME + "br x1\n" + RETURNS, "may return by br x1 at program:f"),
        ("nop\nret x1", "may return by ret x1 at program:f"),
        ("paciasp\nretaa", "may return by retaa at program:f"),
        ("1: subs x0, x0, #1\nb.ne 1b\nret", "jumps back to where it is entered"),
        ("ret", "returns at once"),
        ("nop\n.space 66000\nret", "is too large"),
        # What it calls there may return, to what is no instruction for us.
        (FRAME + "cbz x0, 1f\n" + RETURNS + "1: bl other\n" + UNKNOWN + "ret", "at program:f.0x14, which cannot be"),
        (FRAME + "cbz x0, 1f\n" + RETURNS + "1: " + UNKNOWN, "continues at program:f.0x10, which cannot be decoded"),
        (FRAME + "cbz x0, 1f\n" + RETURNS + "1: nop\n" + UNKNOWN, "at program:f.0x14, which cannot be decoded"),
    ],
)
def test_what_is_not_known_is_refused(found: Found, body: str, said: str) -> None:
    with pytest.raises(OptprobeError, match=said):
        found(body)


@pytest.mark.parametrize(
    ("others", "to", "said"),
    [
        (MISALIGNED, "8f", "continues at program:f.cold.0x2, which cannot be decoded"),
        (OTHERS.replace("b 9f", UNKNOWN), "f.cold", "continues at program:f.cold.0x4, which cannot be decoded"),
    ],
)
def test_a_part_that_is_apart_and_is_not_known(found: Found, others: str, to: str, said: str) -> None:
    """A hostile file's, or of instructions of a later CPU."""
    with pytest.raises(OptprobeError, match=said):
        found(FRAME + f"cbz x0, {to}\n9: " + RETURNS, others)


def test_a_function_without_a_symbol_is_refused(tmp_path: Path) -> None:
    """Where it ends is not known."""
    data = assembled(tmp_path / "bare", ".global _start\n_start: nop\nret", "aarch64", "-s").read_bytes()
    elf = Elf.of("bare", lambda offset, size: data[offset : offset + size], len(data), KIND)
    assert LEAVING is not None
    with pytest.raises(OptprobeError, match="has no symbol"):
        exits.exits(Program(File("/bare", 1, 1, 1, len(data), 1), elf), elf.first_code, TRAPS, LEAVING)
