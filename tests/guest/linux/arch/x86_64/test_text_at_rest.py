"""What the kernel rewrites while it runs is taken from its text; another's patch is not."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.linux.arch.x86_64.text_at_rest import Rewritten, at_rest
from tests.detours.fakes import code

TEXT = 0xFFFFFFFF81000000
SIZE = 0x400
ONE, TWO = TEXT + 0x100, TEXT + 0x200
NOP, SHORT_NOP = "0f 1f 44 00 00", "66 90"


def text(listing: str) -> bytes:
    data = code(listing)
    return bytes(0x100) + data + bytes(SIZE - 0x100 - len(data))


def rested(listing: str, **sites: object) -> bytes:
    none: dict[str, object] = {"traced": [], "labels": [], "static_calls": [], "locks": []}
    return at_rest(text(listing), TEXT, Rewritten(**{**none, **sites}), {ONE, TWO}.__contains__)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("listing", "sites", "rest"),
    [
        ("e8 fb 0f 00 00  call beyond", {"traced": [ONE]}, NOP),
        ("e8 fb 00 00 00  call two", {"traced": [ONE]}, NOP),
        ("e8 fb 00 00 00  call two", {"static_calls": [ONE]}, NOP),
        ("e9 fb 00 00 00  jmp two", {"static_calls": [ONE]}, NOP),
        ("c3 cc cc cc cc  ret", {"static_calls": [ONE]}, NOP),
        ("2e 2e 2e 31 c0  xor %eax, %eax", {"static_calls": [ONE]}, NOP),
        ("e9 04 01 00 00  jmp two+9", {"labels": [(ONE, TWO + 9)]}, NOP),
        ("eb 10  jmp", {"labels": [(ONE, ONE + 0x12)]}, SHORT_NOP),
        ("eb f0  jmp", {"labels": [(ONE, ONE - 14)]}, SHORT_NOP),
        ("3e 0f b1 0a  cmpxchg", {"locks": [ONE]}, "f0 0f b1 0a"),
    ],
)
def test_what_the_kernel_writes_is_taken_away(listing: str, sites: dict[str, object], rest: str) -> None:
    assert rested(listing, **sites) == text(f"{rest}  at rest")
    assert rested(f"{rest}  at rest", **sites) == text(f"{rest}  at rest")


@pytest.mark.parametrize(
    ("listing", "sites"),
    [
        ("e8 04 01 00 00  call two+9", {"traced": [ONE]}),
        ("e9 fb 00 00 00  jmp two", {"traced": [ONE]}),
        ("e9 04 01 00 00  jmp two+9", {"static_calls": [ONE]}),
        ("e9 04 01 00 00  jmp two+9", {"labels": [(ONE, TWO + 8)]}),
        ("eb 10  jmp", {"labels": [(ONE, ONE + 0x11)]}),
        ("2e 0f b1 0a  cmpxchg", {"locks": [ONE]}),
        ("e8 fb 0f 00 00  call beyond", {}),
    ],
)
def test_a_patch_of_another_s_stays(listing: str, sites: dict[str, object]) -> None:
    """A table of the guest's that lies hides no branch into a function."""
    assert rested(listing, **sites) == text(listing)


@pytest.mark.parametrize("at", [0, 1, TEXT - 1, TEXT + SIZE - 4, TEXT + SIZE, 2**64 - 1])
def test_tables_that_lead_out_of_the_text_change_nothing(at: int) -> None:
    sites: dict[str, object] = {"traced": [at], "labels": [(at, ONE)], "static_calls": [at], "locks": [at]}
    assert rested("c3  ret", **sites) == text("c3  ret")
