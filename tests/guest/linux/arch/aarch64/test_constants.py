"""Addresses that code makes, from what gcc 12 made of Linux 6.1; and any words at all."""

from __future__ import annotations

import random

from gdb_optprobe.guest.linux.arch.aarch64.constants import access, constants
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Flow, Insn

AT = 0xFFFF_A819_7D97_3600


def of(*words: int, at: int = AT) -> tuple[tuple[int, ...], tuple[int, ...]]:
    code = b"".join(word.to_bytes(4, "little") for word in words)
    found = constants(AARCH64.decode(code, at))
    return found.made, found.used


def test_a_page_and_a_sum() -> None:
    # find_bug: adrp x4, …7f2000; add x1, x4, #0xf18; ldrsw x0, [x4, #3864]
    made, used = of(0xF000_73E4, 0x913C_6081, 0xB98F_1880)
    assert made == (0xFFFF_A819_7E7F_2F18,) == used


def test_a_base_that_a_load_moves() -> None:
    # adrp x21; add x21, x21, #0x5c0; ldr x0, [x21, #80]!; add x1, x21, #8
    made, used = of(0xB000_BB75, 0x9117_02B5, 0xF845_0EA0, 0x9100_22A1)
    page = made[0] - 0x5C0
    assert not page % 4096 and used == (page + 0x5C0 + 80,)
    assert made[1] == page + 0x5C0 + 80 + 8


def test_a_copy_and_a_call() -> None:
    # adrp x0; add x0, x0, #8; mov x19, x0; bl; ldr x1, [x0]; ldr x2, [x19]
    made, used = of(0x9000_0000, 0x9100_2000, 0xAA00_03F3, 0x9400_0010, 0xF940_0001, 0xF940_0262)
    assert len(made) == 1 and used == made


def test_a_register_that_is_loaded_again() -> None:
    # adrp x0; add x0, x0, #8; ldp x0, x1, [sp]; ldr x2, [x0]
    _, used = of(0x9000_0000, 0x9100_2000, 0xA940_07E0, 0xF940_0002)
    assert used == ()


def test_offsets_of_loads_and_stores() -> None:
    found = access(0xB94F_C000)  # ldr w0, [x0, #4032]
    assert found is not None and (found.base, found.offset, found.loaded) == (0, 4032, (0,))
    found = access(0xA8C4_7BFD)  # ldp x29, x30, [sp], #64
    assert found is not None and (found.base, found.offset, found.moved, found.loaded) == (31, 0, 64, (29, 30))
    found = access(0xA9BD_7BFD)  # stp x29, x30, [sp, #-48]!
    assert found is not None and (found.base, found.moved, found.loaded) == (31, -48, ())
    assert access(0x9100_2000) is None


def test_any_words() -> None:
    source = random.Random(3)
    for _ in range(50):
        words = [source.getrandbits(32) for _ in range(200)]
        code = [Insn(AT + 4 * n, word.to_bytes(4, "little"), "", Flow.NEXT, None) for n, word in enumerate(words)]
        found = constants(code)
        assert all(0 <= value < 1 << 64 for value in (*found.made, *found.used))
