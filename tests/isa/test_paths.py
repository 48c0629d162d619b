"""The shortest way through code."""

from __future__ import annotations

from gdb_optprobe.isa.paths import shortest
from gdb_optprobe.isa.x86_64 import X86_64

AT = 0x1000


def ways(code: str) -> int:
    return shortest(X86_64.decode(bytes.fromhex(code), AT))


def test_straight_code() -> None:
    assert ways("90 90 48ffc0") == 3
    assert ways("") == 0


def test_a_jump_over_the_rest() -> None:
    assert ways("4839d8 7503 48ffc0") == 2  # cmp; jne to the end; inc
    assert ways("4839d8 7504 48ffc0 90 90") == 3  # one instruction is left to do there


def test_what_only_goes_round_ends_at_its_end() -> None:
    assert ways("48ffc8 75fb") == 2  # dec; jnz back


def test_no_way_out() -> None:
    assert ways("ebfe 90") == 2
