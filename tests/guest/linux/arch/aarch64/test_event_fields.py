"""The handler that has fields assigned, and its gates, on Unicorn, around an assignment as a kernel has it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import unicorn
from unicorn import arm64_const

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.aarch64 import event_fields
from gdb_optprobe.guest.linux.arch.aarch64.tracepoints import TRACEPOINTS
from gdb_optprobe.guest.linux.event_fields import EventFormat
from gdb_optprobe.guest.linux.kernel import NoSuchKernel
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.encodings import branch_on_zero, encode_items, number, pair, plain, scaled
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.aarch64.writer import branch
from gdb_optprobe.isa.codegen import Label
from tests.guest.linux.event_fields import (
    ASSIGNS,
    CALLER,
    CODE,
    COMMIT,
    COMMITS,
    DATA,
    FIELD,
    GATES,
    LAYOUT,
    MISSED,
    RESERVE,
    TOP,
    Assigning,
    Processor,
    Ran,
    check_a_probe_sees_the_entry,
    check_an_entry_without_room_is_counted_and_not_probed,
    check_the_kernels_own_files_pass_the_gates,
)

RETURNS = to_bytes(0xD65F_03C0)
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
    to = [int.from_bytes(branch(at, gate, link=True), "little") for at, gate in ((first, GATES), (second, COMMITS))]
    return encode_items([*start, to[0], *middle, to[1], *end])


PROCESSOR = Processor(
    lambda: unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM),
    lambda name: int(getattr(arm64_const, f"UC_ARM64_REG_{name.upper()}")),
    *("pc", "sp", "x19", ("x0", "x1", "x2"), "x0"),
)
HANDLER = event_fields.handler(MADE, MISSED)


def called(size: int) -> Ran:
    gates = {GATES: event_fields.reserve(MADE, GATES), COMMITS: event_fields.commit(MADE, COMMITS)}
    kernels = {ASSIGNS: assignment(size), RESERVE: RETURNS, COMMIT: RETURNS}
    return Assigning(PROCESSOR, MADE, HANDLER, gates | kernels, {"x29": TOP + 64, "x30": CALLER}).called()


def test_a_probe_sees_the_entry_and_the_caller_gets_all_back() -> None:
    run = called(size=16)
    check_a_probe_sees_the_entry(run)
    assert run.register("x29") == TOP + 64


def test_a_probe_knows_the_caller() -> None:
    run = called(size=16)
    run.go(CODE, run.probed)
    registers = {name: run.register(name) for name in ("x29", "x30", "sp", "pc")}
    found = TRACEPOINTS.caller(registers, HANDLER[2], lambda at, size: bytes(run.machine.mem_read(at, size)))
    assert (found["pc"], found["sp"], found["x29"]) == (CALLER, TOP, TOP + 64)


def test_an_entry_that_has_no_room_is_counted_and_not_probed() -> None:
    check_an_entry_without_room_is_counted_and_not_probed(called(size=MADE.room + 1))


@pytest.mark.parametrize("size", [16, 4096])
def test_the_kernels_own_files_pass_the_gates(size: int) -> None:
    check_the_kernels_own_files_pass_the_gates(called(size), size)


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
