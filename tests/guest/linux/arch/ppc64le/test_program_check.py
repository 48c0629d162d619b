"""Where a ppc64le kernel takes a program check, read off entry code like Linux 6.1's, and off what is not like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le.program_check import find
from gdb_optprobe.guest.linux.trap_calls import TrapCalls
from gdb_optprobe.isa.ppc64le.encodings import number, plain
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from tests.guest.linux.arch.ppc64le.test_arch import BASE, power_kernel
from tests.guest.linux.fake_kernel import Pages

VIRT, BACK, HANDLER, END = BASE + 0x92E0, BASE + 0xC9D0, BASE + 0x1_0000, BASE + 0x2_0000
NAMES = {
    "_stext": BASE,
    "program_check_common": VIRT - 16,
    "program_check_common_virt": VIRT,
    "after": VIRT + 0x400,
    "interrupt_return_srr_kernel": BACK,
    "interrupt_return_srr_kernel_restart": BACK + 0x100,
    "program_check_exception": HANDLER,
    "tail": HANDLER + 0x40,
    "d__etext": END,
    "_einittext": END,
}
FRAME, STALE, NOP = 112, 2353, 0x6000_0000
TEST = number("andi.", "r12", "r10", 1 << 14)
IN_PACA = {"r9": 128, "r10": 136, "r11": 144, "r12": 152, "r13": 160, "ctr": 200}
SLOTS = {**{f"r{n}": FRAME + 8 * n for n in range(9, 14)}, "ctr": FRAME + 280}
Parts = dict[str, tuple[int, ...]]
Change = Callable[[Parts], None]


def saving(name: str) -> tuple[int, ...]:
    return number("ld", "r10", "r13", IN_PACA[name]), number("std", "r10", "r1", SLOTS[name])


def entry() -> Parts:
    """By what each part is for, in order."""
    frame = {"cr": ("r9", 304), "nip": ("r11", 256), "msr": ("r12", 264)}
    return {
        "test": (TEST,),
        **{name: (number("std", register, "r1", FRAME + at),) for name, (register, at) in frame.items()},
        "valid": (number("addi", "r10", "r0", 1), number("stb", "r10", "r13", STALE)),
        **{name: saving(name) for name in IN_PACA},
        "regs": (number("addi", "r3", "r1", FRAME),),
        "call": (0x4800_0001 | HANDLER + 8 - VIRT - 4 * 20 & 0x03FF_FFFC,),
    }


WAY_BACK = (
    number("lbz", "r11", "r13", STALE + 2),
    *(NOP,) * 12,
    number("lbz", "r4", "r13", STALE),
    NOP,
    plain("mtsrr0", "r11"),
)


def found(parts: Parts, way_back: tuple[int, ...] = WAY_BACK) -> TrapCalls:
    memory = Pages()
    words = [word for part in parts.values() for word in part]
    words[-1:] = [NOP] * (20 - len(words) + 1) + [words[-1]]  # where the call reaches from
    memory.put(VIRT, to_bytes(*words))
    memory.put(BACK, to_bytes(*way_back))
    return find(power_kernel(memory, NAMES), {})


def test_what_the_code_says() -> None:
    calls = found(entry())
    assert [insn.address for insn in calls.calls] == [calls.handler] == [VIRT]
    assert (calls.entry.kernels, calls.entry.saved, calls.entry.stale) == (VIRT + 4, IN_PACA, STALE)
    assert calls.entry.displaced == calls.calls[0] and calls.calls[0].data == to_bytes(TEST)
    assert any(start <= VIRT - 16 < VIRT + 4 == end for start, end in calls.ways_in)


def without(name: str) -> Change:
    def change(parts: Parts) -> None:
        del parts[name]

    return change


def with_first(*words: int) -> Change:
    def change(parts: Parts) -> None:
        parts["test"] = words

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(without(name) for name in ("cr", "nip", "msr", "valid", "regs", *IN_PACA)),
        with_first(number("addi", "r9", "r0", 0), TEST),  # the CR is lost before it is stored
        with_first(number("std", "r10", "r1", 0), TEST),  # r10 means something
        with_first(plain("mfctr", "r10"), TEST),  # and so does CTR
        with_first(0x4800_0004, TEST),  # a branch, which no copy of is itself
        with_first(TEST, number("ld", "r10", "r13", 72), number("std", "r10", "r1", SLOTS["r9"])),  # two places of one
    ],
)
def test_code_that_says_something_else(change: Change) -> None:
    parts = entry()
    change(parts)
    with pytest.raises(OptprobeError):
        found(parts)


def test_a_way_back_that_says_something_else() -> None:
    for way_back in ((NOP,), WAY_BACK[:1] + WAY_BACK[-1:], WAY_BACK[:-1], WAY_BACK[:-3] + (NOP,) * 2 + WAY_BACK[-1:]):
        with pytest.raises(OptprobeError):
            found(entry(), way_back)
