"""The handler that has fields assigned, and its gates, on Unicorn, around an assignment as a kernel has it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import unicorn
from unicorn import arm64_const

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.aarch64 import event_fields
from gdb_optprobe.guest.linux.arch.aarch64.tracepoints import TRACEPOINTS
from gdb_optprobe.guest.linux.event_fields import EventField, EventFormat, FileLayout
from gdb_optprobe.guest.linux.kernel import NoSuchKernel
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.encodings import branch_on_zero, encode_items, number, pair, plain, scaled
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.aarch64.writer import branch
from gdb_optprobe.isa.codegen import Label

CODE, GATES, KERNEL, DATA, STACK = range(0x10_0000, 0x60_0000, 0x10_0000)
RESERVE, COMMIT, ASSIGNS, CALLER = KERNEL, KERNEL + 0x100, KERNEL + 0x200, KERNEL + 0x300
MISSED, HEAP, TOP = DATA, DATA + 0x100, STACK + 0x8000
RETURNS = to_bytes(0xD65F_03C0)
LAYOUT = FileLayout(call=16, trace=40, filter=24, flags=72, size=128, buffer_file=16, buffer_entry=24)
FIELD = EventField("number", "int", 8, 4, signed=True)
MADE = EventFormat(0xFFFF_8000_7000_0000, ASSIGNS, 0xFFFF_8000_7000_1000, RESERVE, COMMIT, LAYOUT, (FIELD,))


def assignment(size: int) -> bytes:
    """trace_event_raw_event_…(file, number), both calls of which lead to gates."""
    out = Label()
    start = [
        pair("push_pair", "x29", "x30", -64), number("addi", "x29", "sp", 0), pair("str_pair", "x19", "x20", 16),
        plain("orr", "x20", "xzr", "x1"), plain("orr", "x1", "xzr", "x0"),
        number("addi", "x0", "sp", 32), plain("movz", "x2") | size << 5,
    ]  # fmt: skip
    middle = [branch_on_zero("cbz", "x0", out), scaled("strw", "x20", "x0", 8, 4), number("addi", "x0", "sp", 32)]
    end = [out, pair("ldr_pair", "x19", "x20", 16), pair("pop_pair", "x29", "x30", 64), plain("ret", n="x30")]
    first, second = ASSIGNS + 4 * len(start), ASSIGNS + 4 * (len(start) + 1 + len(middle))
    to = [int.from_bytes(branch(at, gate, link=True), "little") for at, gate in ((first, GATES), (second, GATES + 256))]
    return encode_items([*start, to[0], *middle, to[1], *end])


@dataclass
class Ran:
    machine: Any
    probed: int
    frame: int

    def register(self, name: str) -> int:
        return int(self.machine.reg_read(getattr(arm64_const, f"UC_ARM64_REG_{name.upper()}")))

    def set(self, **values: int) -> None:
        for name, value in values.items():
            self.machine.reg_write(getattr(arm64_const, f"UC_ARM64_REG_{name.upper()}"), value)

    def word(self, at: int, size: int = 8) -> int:
        return int.from_bytes(self.machine.mem_read(at, size), "little")

    def go(self, start: int, until: int) -> None:
        self.machine.emu_start(start, until, count=1000)


def machine(size: int) -> Ran:
    made: Any = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    for page in (CODE, GATES, KERNEL, DATA, STACK):
        made.mem_map(page, 0x1_0000)
    handler, probed, frame = event_fields.handler(MADE, MISSED)
    pieces = {CODE: handler, GATES: event_fields.reserve(MADE, GATES), ASSIGNS: assignment(size)}
    pieces |= {GATES + 256: event_fields.commit(MADE, GATES + 256), RESERVE: RETURNS, COMMIT: RETURNS}
    for at, held in pieces.items():
        made.mem_write(at, held)
    run = Ran(made, CODE + probed, frame)
    run.set(sp=TOP, x0=1, x1=4242, x19=77, x29=TOP + 64, x30=CALLER)
    return run


def test_a_probe_sees_the_entry_and_the_caller_gets_all_back() -> None:
    run = machine(size=16)
    run.go(CODE, run.probed)
    assert run.register("pc") == run.probed
    file = run.register("sp")
    assert run.word(file + MADE.entry + FIELD.offset, 4) == 4242
    assert (run.word(file + LAYOUT.call), run.word(file + LAYOUT.trace)) == (MADE.call, MADE.trace)
    assert run.word(file + LAYOUT.flags) == 0, "no trigger, no filter: the kernel's own functions would do no harm"
    registers = {name: run.register(name) for name in ("x29", "x30", "sp", "pc")}
    called = TRACEPOINTS.caller(registers, run.frame, lambda at, size: bytes(run.machine.mem_read(at, size)))
    assert (called["pc"], called["sp"], called["x29"]) == (CALLER, TOP, TOP + 64)
    run.go(run.probed, CALLER)
    assert [run.register(name) for name in ("pc", "sp", "x19", "x29")] == [CALLER, TOP, 77, TOP + 64]
    assert run.word(MISSED) == 0


def test_an_entry_that_has_no_room_is_counted_and_not_probed() -> None:
    run = machine(size=MADE.room + 1)
    passed: list[int] = []
    run.machine.hook_add(unicorn.UC_HOOK_CODE, lambda _, at, size, data: passed.append(at))
    run.go(CODE, CALLER)
    assert [run.register(name) for name in ("pc", "sp", "x19")] == [CALLER, TOP, 77]
    assert run.probed not in passed and run.word(MISSED) == 1


@pytest.mark.parametrize("size", [16, 4096])
def test_the_kernels_own_files_pass_the_gates(size: int) -> None:
    """A file without our mark: the kernel's functions run, with their arguments."""
    run = machine(size)
    passed: list[tuple[int, int, int]] = []

    def note(_: object, at: int, size: int, data: object) -> None:
        if at in (RESERVE, COMMIT):
            passed.append((at, run.register("x1"), run.register("x2")))
        if at == RESERVE:  # as the kernel's own function does
            run.machine.mem_write(run.register("x0") + LAYOUT.buffer_file, HEAP.to_bytes(8, "little"))
            run.set(x0=HEAP + 0x400)

    run.machine.hook_add(unicorn.UC_HOOK_CODE, note)
    run.set(x0=HEAP, x1=5)
    run.go(ASSIGNS, CALLER)
    assert [at for at, *_ in passed] == [RESERVE, COMMIT]
    assert passed[0][1:] == (HEAP, size) and run.word(HEAP + 0x408, 4) == 5


def test_a_handler_without_fields_does_nothing_and_its_caller_is_in_the_link_register() -> None:
    made = TRACEPOINTS.handler()
    assert [insn.text for insn in AARCH64.decode(made.data, CODE)] == ["nop", "ret"] and made.probed == made.frame == 0
    registers = {"x29": 1, "x30": CALLER, "sp": TOP, "pc": CODE}
    assert TRACEPOINTS.caller(registers, 0, lambda at, size: b"") == {**registers, "pc": CALLER}


@pytest.mark.parametrize("member", ["call", "trace", "filter", "flags", "buffer_file", "buffer_entry"])
@pytest.mark.parametrize("offset", [-8, 4, 1 << 20])
def test_a_layout_that_lies_is_refused(member: str, offset: int) -> None:
    made = replace(MADE, layout=replace(LAYOUT, **{member: offset}))
    with pytest.raises(NoSuchKernel, match="layout"):
        _ = event_fields.handler(made, MISSED), event_fields.reserve(made, GATES), event_fields.commit(made, GATES)


def test_the_mark_is_no_address() -> None:
    assert 0 < event_fields.MARK < 1 << 47, "the kernel's addresses are in the upper half"


def test_a_call_by_a_veneer_leads_to_the_function_behind_it() -> None:
    """adrp x16; add x16, x16; br x16, as a module has them; anything else leads where it leads."""
    pages = (RESERVE >> 12) - (CODE >> 12)
    adrp = 0x9000_0000 | (pages & 3) << 29 | (pages >> 2 & 0x7_FFFF) << 5 | 16
    veneer = to_bytes(adrp, number("addi", "x16", "x16", RESERVE & 0xFFF), 0xD61F_0200)

    def read(held: bytes, address: int, size: int) -> bytes:
        if address != CODE:
            raise Unreadable(address, size)
        return held[:size]

    assert TRACEPOINTS.called(CODE, partial(read, veneer)) == RESERVE
    assert TRACEPOINTS.called(CODE, partial(read, veneer[:8] + RETURNS)) == CODE
    assert TRACEPOINTS.called(CODE, partial(read, RETURNS * 2 + veneer[8:])) == CODE
    assert TRACEPOINTS.called(DATA, partial(read, veneer)) == DATA
