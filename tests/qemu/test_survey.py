"""Adding up what several processes found; Linux's rules for what it would copy or compute."""

from __future__ import annotations

from collections import Counter

import pytest

from qemu.linux_rule import boostable, ranges
from qemu.linux_rule_ppc64le import computed
from qemu.survey import Tally


def test_tallies_add_up_and_the_first_example_stays() -> None:
    found = Tally(Counter({"": 8, "BUG_TABLE": 2}), {"BUG_TABLE": 16}, {0: (10, 8)}, 5)
    found.add(Tally(Counter({"": 9, "BUG_TABLE": 1}), {"BUG_TABLE": 116}, {100: (10, 9)}, 3))
    assert (found.instructions, found.functions, found.by_linux) == (20, 2, 8)
    assert found.share == 17 / 20
    assert found.examples == {"BUG_TABLE": 16}


def test_blacklist() -> None:
    printed = "0xffffffff81000990-0xffffffff810009b0\tasm_exc_divide_error\n0xffffffff81000010-0xffffffff81000020\tx\n"
    assert ranges(printed) == [
        (0xFFFFFFFF81000010, 0xFFFFFFFF81000020),
        (0xFFFFFFFF81000990, 0xFFFFFFFF810009B0),
    ]


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("41 55", "push %r13", True),
        ("0f 1f 44 00 00", "nop", True),
        ("0f b6 c0", "movzx %al, %eax", True),
        ("48 8b 05 01 00 00 00", "mov 1(%rip), %rax", True),
        ("ff e0", "jmp *%rax", True),
        ("ff d0", "call *%rax", False),
        ("ff c0", "inc %eax", False),
        ("e8 00 00 00 00", "call", False),
        ("eb 00", "jmp", False),
        ("74 00", "je", False),
        ("0f 84 00 00 00 00", "je", False),
        ("c1 e0 04", "shl $4, %eax", False),
        ("48 f7 f1", "div %rcx", False),
        ("67 8b 00", "mov (%eax), %eax", False),
        ("8e d0", "mov %eax, %ss", False),
        ("f3 0f b8 c0", "popcnt %eax, %eax", False),
        ("0f 38 f0 00", "movbe (%rax), %eax", False),
        ("c5 f8 77", "vzeroupper", False),
    ],
)
def test_what_linux_would_copy_for_a_jump(code: str, text: str, expected: bool) -> None:
    assert boostable(bytes.fromhex(code)) is expected, text


@pytest.mark.parametrize(
    ("word", "text", "expected"),
    [
        (0x38630001, "addi r3, r3, 1", True),
        (0x60000000, "nop", True),
        (0x7C0802A6, "mflr r0", True),
        (0x7C0903A6, "mtctr r0", True),
        (0x7C7A03A6, "mtsrr0 r3", False),
        (0x4BFFFFFD, "bl", True),
        (0x4E800020, "blr", False),
        (0x4E800420, "bctr", False),
        (0x4182FFFC, "beq", False),
        (0xF8010010, "std r0, 16(r1)", False),
        (0xE8010010, "ld r0, 16(r1)", False),
        (0x7C6028A8, "ldarx r3, 0, r5", False),
        (0x7C0004AC, "sync", True),
        (0x4C00012C, "isync", True),
        (0x7C6000A6, "mfmsr r3", False),
        (0x78630020, "clrldi r3, r3, 32", True),
        (0x7C63289E, "isel r3, r3, r5, 2", True),
        (0x0FE00000, "twui r0, 0", False),
        (0x44000002, "sc", False),
    ],
)
def test_what_linux_computes_on_ppc64le(word: int, text: str, expected: bool) -> None:
    assert computed(word.to_bytes(4, "little")) is expected, text
