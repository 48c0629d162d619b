"""Who called in a program, from a copy of its stack: what is sure and what is marked; nothing is raised."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.x86_64.mmu import KIND
from gdb_optprobe.guest.linux.arch.x86_64.user_traps import USER
from gdb_optprobe.guest.linux.backtrace import MOST, Copy
from gdb_optprobe.guest.linux.user import cfi
from gdb_optprobe.guest.linux.user.elf import Elf
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.unwinder import Loaded, Process, Source, UserFrame
from gdb_optprobe.isa.x86_64.abi import FRAMES
from tests.booted import stacked
from tests.booted.assembled import assembled
from tests.examples import examples

STACK = 0x7FFD_0000_1000
BIAS = 0x5555_5555_4000
OTHER = 0x7F12_3456_7000
SIGNALLED = """
.globl _start
.type _start, @function
_start: .cfi_startproc
        .cfi_undefined rip
        call first
        .cfi_endproc
.size _start, . - _start
.type first, @function
first:  .cfi_startproc
        ret
        .cfi_endproc
.size first, . - first
        nop
.type restore, @function
restore: .cfi_startproc
        .cfi_signal_frame
        .cfi_def_cfa rsp, 24
        .cfi_offset rip, -24
        .cfi_offset rsp, -16
        nop
        .cfi_endproc
.size restore, . - restore
"""


def program(path: Path) -> Program:
    data = path.read_bytes()
    elf = Elf.of(path.name, lambda offset, size: data[offset : offset + size], len(data), KIND)
    return Program(File(str(path), 0, 0, 0, len(data), 0), elf)


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return program(stacked.build(tmp_path_factory.mktemp("stacks")))


def process(*programs: tuple[Program, int], changed: int | None = None) -> Process:
    """changed: where a file is that has been written to since."""
    files = tuple(Loaded(Source(each, bias != changed), bias) for each, bias in programs)
    return Process(files, FRAMES[64], partial(USER.decode, bits=64))


def words(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def told(found: Process, pc: int, stack: bytes, **registers: int) -> list[str]:
    frames = found.callers({"rip": pc, "rsp": STACK, **registers}, Copy(STACK, stack))
    return [("" if frame.sure else "? ") + (frame.symbol or hex(frame.address)) for frame in frames]


def at(program: Program, place: str, bias: int = BIAS) -> int:
    return program.resolve(place) + bias


def test_callers_in_two_files_and_in_one_that_is_not_known(stacks: Program) -> None:
    both = process((stacks, BIAS), (stacks, OTHER))
    inner, here, there = at(stacks, "inner"), at(stacks, "bare+9"), at(stacks, "bare+9", OTHER)
    assert told(both, inner, words(there, 0, at(stacks, "_start+6", OTHER))) == [
        "stacked:inner", "stacked:bare+0x9", "0x0", "? stacked:_start+0x6"
    ]  # fmt: skip
    assert told(both, inner, words(0x1234, here, 0)) == ["stacked:inner", "0x1234", "0x0", "? stacked:bare+0x9"]
    assert told(both, inner, words(0)) == ["stacked:inner", "0x0"], "nothing says that nobody called"
    assert told(both, at(stacks, "_start"), b"") == ["stacked:_start"], "the file does"
    assert told(both, inner, b"") == ["stacked:inner", "0x0"]


def test_what_stands_behind_no_call_is_no_caller(stacks: Program) -> None:
    one = process((stacks, BIAS))
    pointers = [at(stacks, place) for place in ("inner", "inner+2", "bare+4", "middle+1", "_start+7", "_start+11")]
    assert told(one, at(stacks, "bare+9"), words(*pointers)) == ["stacked:bare+0x9", "0x0", "? stacked:_start+0xb"]


def test_nothing_is_sure_of_a_file_that_has_been_written_to(stacks: Program) -> None:
    inner, here, there = at(stacks, "inner"), at(stacks, "bare+9"), at(stacks, "bare+9", OTHER)
    one = process((stacks, BIAS), changed=BIAS)
    assert told(one, inner, words(here, 0)) == ["? stacked:inner", "0x0", "? stacked:bare+0x9"]
    both = process((stacks, BIAS), (stacks, OTHER), changed=OTHER)
    assert told(both, inner, words(there, here)) == ["stacked:inner", "0x0", *["? stacked:bare+0x9"] * 2]


def test_what_a_file_has_not_in_memory_is_asked_for_once(stacks: Program) -> None:
    """Of all the records of a report; the next one asks again."""
    asked: list[int] = []

    def read(offset: int, size: int) -> bytes:
        asked.append(offset)
        raise OptprobeError("not in the guest's memory")

    gone = Program(stacks.file, replace(stacks.elf, read=read))
    for source, times in ((Source(gone), 2), (Source(gone), 4)):
        for _ in range(3):
            one = Process((Loaded(source, BIAS),), FRAMES[64], partial(USER.decode, bits=64))
            inner = at(stacks, "inner")
            assert told(one, inner, words(1, 2)) == [hex(inner), "0x0"]
        assert len(asked) == times, "symbols, and what is said of frames"


def test_a_limit_of_what_is_read_of_frames_is_told(stacks: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack ends there, and says why; what follows may be left from earlier calls."""
    monkeypatch.setattr(cfi, "MOST_FRAMES", 1)
    one = process((Program(stacks.file, replace(stacks.elf)), BIAS))
    pc, here = (at(stacks, place) for place in ("inner", "bare+9"))
    *first, last = told(one, pc, words(0, here))
    assert last == "? stacked:bare+0x9"
    assert first == ["stacked:inner", "a program's .eh_frame has over 1 descriptions of frames"]


def test_a_call_that_returns_to_a_trap_of_ours(stacks: Program) -> None:
    one, ours = process((stacks, BIAS)), stacks.filler[0] + BIAS + 8
    stack = words(ours, 5, at(stacks, "_start+6"))
    assert told(one, at(stacks, "inner"), stack) == ["stacked:inner", "0x0", "? stacked:_start+0x6"]


def test_where_a_signal_came_is_no_return_address(tmp_path: Path) -> None:
    """`first` has just begun: the instruction before it is another function's, whose last one calls."""
    made = program(assembled(tmp_path / "signalled", SIGNALLED, "x86_64", "-static"))
    stack = words(at(made, "first", 0), STACK + 32, 0, 7, at(made, "_start+5", 0))
    assert told(process((made, 0)), at(made, "restore", 0), stack) == [
        "signalled:restore", "signalled:first", "signalled:_start+0x5"
    ]  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(
    pc=st.integers(-1, 80),
    stack=st.lists(st.tuples(st.sampled_from("cstn"), st.integers(-64, 80)), max_size=40),
    rbp=st.integers(-9, 400),
    size=st.integers(0, 7),
)
def test_any_stack(stacks: Program, pc: int, stack: list[tuple[str, int]], rbp: int, size: int) -> None:
    """Of pointers into code, the stack and behind the code, and of numbers."""
    bases = {"c": stacks.first_code + BIAS, "s": STACK, "t": stacks.filler[0] + BIAS, "n": 64}
    data = words(*(bases[kind] + by for kind, by in stack))
    registers = {"rip": bases["c"] + pc, "rsp": STACK, "rbp": STACK + rbp, "rbx": 1}
    found = [*process((stacks, BIAS)).callers(registers, Copy(STACK, data[: max(len(data) - size, 0)]))]
    assert len(found) <= 2 * MOST + 1 and found[0] in (UserFrame(bases["c"] + pc, found[0].symbol), UserFrame(0))
    sure = [frame.sure for frame in found]
    assert sure == sorted(sure, reverse=True), "behind what is not known nothing is sure"
