"""Where an aarch64 kernel takes synchronous exceptions, read off code like Linux 6.1's, and off what is not like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.el1_sync import SAVED, find
from gdb_optprobe.guest.linux.trap_calls import TrapCalls
from gdb_optprobe.isa.aarch64.fields import BL, NOP, B, to_bytes
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFF_8000_0800_0000
VECTORS, COPY, EACH = TEXT, TEXT + 0x800, 0x200
SYNC, HANDLER, ABORT, BEFORE, USUAL, END = (TEXT + at for at in (0x1000, 0x2000, 0x2100, 0x2200, 0x2300, 0x3000))
NAMES = {
    "_stext": TEXT,
    "__entry_text_start": TEXT,
    "vectors": VECTORS,
    "more_vectors": COPY,
    "el1h_64_sync": SYNC,
    "__entry_text_end": TEXT + 0x1800,
    "el1h_64_sync_handler": HANDLER,
    "el1_abort": ABORT,
    "called_before": BEFORE,
    "do_mem_abort": USUAL,
    "after": USUAL + 0x100,
    "d__etext": END,
    "_einittext": END,
}
ESR, FAR = 0xD538_5213, 0xD538_6013  # mrs x19, …
OVERFLOWS = [0xD105_43FF, 0x8B20_63FF, 0xCB20_63E0, 0x3770_0080, 0xCB20_63E0, 0xCB20_63FF]
Parts = dict[int, list[int]]
Change = Callable[[Parts], None]


def to(source: int, target: int, kind: int = B) -> int:
    return kind | target - source >> 2 & 0x03FF_FFFF


def vector(at: int) -> list[int]:
    code = [*OVERFLOWS, to(at + 24, SYNC), *(NOP,) * 4]
    return [*code, to(at + 4 * len(code), SYNC)]


def parts() -> Parts:
    return {
        VECTORS + EACH: vector(VECTORS + EACH),
        COPY + EACH: vector(COPY + EACH),
        SYNC: [*SAVED, to(SYNC + 36, HANDLER, BL)],
        HANDLER: [ESR, to(HANDLER + 4, ABORT, BL), to(HANDLER + 8, USUAL, BL)],
        ABORT: [to(ABORT, BEFORE, BL), FAR, to(ABORT + 8, USUAL, BL)],
    }


def found(of: Parts) -> TrapCalls:
    memory = Pages()
    memory.put(TEXT, bytes(END - TEXT))
    for at, words in of.items():
        memory.put(at, to_bytes(*words))
    return find(kernel(memory, NAMES), {})


def test_what_the_code_says() -> None:
    calls = found(parts())
    assert [insn.address for insn in calls.calls] == [calls.handler] == [SYNC]
    assert (calls.entry.kernels, calls.entry.frame, calls.entry.displaced) == (SYNC + 4, 0x150, calls.calls[0])
    assert calls.ways_in == ((VECTORS + EACH, VECTORS + EACH + 48), (COPY + EACH, COPY + EACH + 48), (SYNC, SYNC + 4))


def test_what_reads_the_exception_and_what_runs_before_that() -> None:
    assert sorted(start for start, _ in found(parts()).readers) == [HANDLER, ABORT, BEFORE]


def test_vectors_that_do_not_look_for_an_overflow() -> None:
    of = parts()
    for at in (VECTORS + EACH, COPY + EACH):
        of[at] = [OVERFLOWS[0], to(at + 4, SYNC)]
    assert len(found(of).ways_in) == 3


def test_our_own_branch_is_not_taken_for_the_kernels_code() -> None:
    of, memory = parts(), Pages()
    memory.put(TEXT, bytes(END - TEXT))
    original = to_bytes(of[SYNC][0])
    of[SYNC][0] = to(SYNC, END)
    for at, words in of.items():
        memory.put(at, to_bytes(*words))
    calls = find(kernel(memory, NAMES), {SYNC: original})
    assert calls.calls[0].data == original


def changed(at: int, number: int, word: int) -> Change:
    def change(of: Parts) -> None:
        of[at][number] = word

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed(SYNC, 0, NOP),  # registers are not saved first
        changed(SYNC, 7, SAVED[8]),
        changed(VECTORS + EACH, 0, 0xD105_C3FF),  # another size of pt_regs than in the copy
        changed(COPY + EACH, 0, NOP),
        changed(COPY + EACH, 5, NOP),  # x0 or sp is another
    ],
)
def test_code_that_says_something_else(change: Change) -> None:
    of = parts()
    change(of)
    with pytest.raises(OptprobeError):
        found(of)


def test_nothing_reads_which_exception_it_was() -> None:
    of = parts()
    of[HANDLER][0] = of[ABORT][1] = NOP
    with pytest.raises(OptprobeError):
        found(of)


def test_no_vector_leads_there() -> None:
    of = parts()
    for at in (VECTORS + EACH, COPY + EACH):
        of[at] = [OVERFLOWS[0], NOP]
    with pytest.raises(OptprobeError):
        found(of)
