"""Frames by their records, before and after a function has made its own, signed or not, and across an exception."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.linux.arch.aarch64.frame_records import FrameRecords, record_in_registers
from gdb_optprobe.guest.linux.arch.aarch64.text import ArmText
from gdb_optprobe.isa.aarch64.abi import GENERAL
from gdb_optprobe.isa.aarch64.fields import to_bytes
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT, ENTRY, FUNCTION, INIT = (0xFFFF_8000_0800_0000 + offset for offset in (0, 0x1000, 0x2000, 0x10000))
SP, RECORD, ABOVE, RETURN = 0xFFFF_8000_0A00_3000, 0xFFFF_8000_0A00_3020, 0xFFFF_8000_0A00_3100, FUNCTION + 0x100
# mov x9, x30; nop; paciasp; sub sp, sp, #0x40; stp x29, x30, [sp, #0x20]; add x29, sp, #0x20; bl; cbz x0, +0x10
# ldp x29, x30, [sp, #0x20]; autiasp; ret; (a cold part:) bl; b -0x10
WORDS = (
    0xAA1E03E9, 0xD503201F, 0xD503233F, 0xD10103FF, 0xA9027BFD, 0x910083FD, 0x94000000, 0xB4000080,
    0xA9427BFD, 0xD50323BF, 0xD65F03C0, 0x94000000, 0x17FFFFFC,
)  # fmt: skip
PT_REGS_RECORD = 0x130
NAMES = {
    "_stext": TEXT,
    "__entry_text_start": ENTRY,
    "el1h_64_irq": ENTRY,
    "__entry_text_end": ENTRY + 0x40,
    "function": FUNCTION,
    "other": RETURN - 4,
    "d__etext": INIT,
    "_sinittext": INIT,
    "d__einittext": INIT + 0x1000,
}


def unwinder() -> tuple[FrameRecords, Pages]:
    memory = Pages()
    memory.put(TEXT, bytes(4))
    memory.put(FUNCTION, to_bytes(*WORDS))
    memory.put(ENTRY, to_bytes(0x9104_C3FD, 0x9400_0000))  # add x29, sp, #0x130; bl
    memory.put_words(RECORD, ABOVE, RETURN)
    text = ArmText(kernel(memory, NAMES))
    record = record_in_registers(text, (ENTRY, ENTRY + 0x40))
    assert record == PT_REGS_RECORD
    return FrameRecords((TEXT, INIT), (INIT, INIT + 0x1000), (ENTRY, ENTRY + 0x40), record, text, memory.read), memory


@pytest.mark.parametrize("index", range(len(WORDS)))
def test_the_caller_before_and_after_each_instruction_of_a_function(index: int) -> None:
    found, _ = unwinder()
    has_record = 6 <= index <= 8 or index >= 11
    registers = dict.fromkeys(GENERAL, 0) | {
        "pc": FUNCTION + 4 * index,
        "sp": SP,
        "x29": RECORD if has_record else ABOVE,
        "x30": 0xDEAD if has_record else RETURN,
    }
    caller = found.caller(registers, exact=True)
    assert caller is not None
    assert (caller[0]["pc"], caller[0]["x29"], caller[1]) == (RETURN, ABOVE, False)


def test_a_signed_return_address() -> None:
    found, memory = unwinder()
    signed = RETURN & ~(0xFF << 56) | 0x5A << 56
    memory.put_words(RECORD, ABOVE, signed)
    caller = found.caller({"pc": RETURN, "sp": SP, "x29": RECORD, "x30": 0}, exact=False)
    assert caller is not None and caller[0]["pc"] == RETURN


def test_what_an_interrupt_has_interrupted() -> None:
    found, memory = unwinder()
    frame = 0xFFFF_8000_0A00_5000
    memory.put_words(frame, *range(31), SP, FUNCTION + 8, 0x6000_0005)
    registers = {"pc": ENTRY + 8, "sp": 0, "x29": frame + PT_REGS_RECORD, "x30": 0}
    caller = found.caller(registers, exact=False)
    assert caller is not None and caller[1]
    assert (caller[0]["pc"], caller[0]["sp"], caller[0]["x30"]) == (FUNCTION + 8, SP, 30)
    memory.put_words(frame + 33 * 8, 0x6000_0000)  # a program's
    assert found.caller(registers, exact=False) is None
    assert found.caller(registers, exact=True) is None, "registers are being saved"


@pytest.mark.parametrize("frame", [0, 1, RECORD + 4, 0xFFFF_8000_0FFF_F000, (1 << 64) - 8])
def test_records_that_are_none(frame: int) -> None:
    found, _ = unwinder()
    assert found.caller({"pc": RETURN, "sp": SP, "x29": frame, "x30": 0}, exact=False) is None


def test_the_last_frame() -> None:
    found, memory = unwinder()
    memory.put_words(RECORD, 0, 0)
    assert found.caller({"pc": INIT + 4, "sp": SP, "x29": RECORD, "x30": 0}, exact=False) is None
    assert found.knows(INIT + 4) and not found.knows(INIT + 0x1000)
