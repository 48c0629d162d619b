"""Adding up what several processes found; Linux's rule for what it would copy."""

from __future__ import annotations

from collections import Counter

import pytest

from qemu.linux_rule import boostable, ranges
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
