"""Every instruction of a program is noted with what it is for, on each instruction set."""

from __future__ import annotations

import pytest

from gdb_optprobe.handlers.ir import (
    Binary,
    Cell,
    Clock,
    Column,
    Constant,
    Emit,
    Form,
    HashMap,
    Load,
    Op,
    Program,
    Records,
    Register,
    Stop,
    StringLoad,
    Update,
)
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Notes, joined, notes_of
from gdb_optprobe.isa.codegen import ProbeReadRoutines
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.maps.aggregate import Count, Powers
from gdb_optprobe.maps.ring import RingLayout

AT = {X86_64: 0xFFFF_FFFF_8100_0000, PPC64LE: 0xC000_0000_0010_0000, AARCH64: 0xFFFF_8000_0810_0000}
REGISTER = {X86_64: "rdi", PPC64LE: "r3", AARCH64: "x0"}
WORD = Column("file->f_mode", Form.UNSIGNED)
NAME = Column("str(name)", Form.TEXT, 16)


def rich(isa: Isa) -> Program:
    """A condition that may fault, an aggregate, a table, a record and a stop."""
    argument = Register(REGISTER[isa])
    mode = Load(Binary(Op.ADD, argument, Constant(8), 64, False), 4, False, source="file->f_mode")
    name = StringLoad(argument, 16, mapped=False, whole=False)
    hist = Update(Cell("hist($elapsed)", Powers(False)), Clock())
    count = Update(HashMap("count by (mode, name)", (WORD, NAME), Count()), None, (mode, name))
    keep = Emit(Records("record(mode, name)", (WORD, NAME)), (mode, name))
    return Program(Binary(Op.GT, mode, Constant(7), 64, False), (hist, count, keep, Stop()))


def noted(isa: Isa, program: Program) -> tuple[bytes, Notes]:
    at = AT[isa]
    data, readers = at + 0x10000, ProbeReadRoutines(at + 0x8000, at + 0x8100)
    around = LoweringContext(
        at,
        tuple(data + 0x1000 * index for index, _ in enumerate(program.objects, 1)),
        data,
        ring=RingLayout(8),
        cpu=Constant(0),
        readers=readers,
        pad=at + 0x9000,
    )
    code = lower(program, around, isa.codegen)
    return code(at), notes_of(code, at)


@pytest.mark.parametrize("isa", [X86_64, PPC64LE, AARCH64])
def test_every_part_of_a_rich_action_is_noted(isa: Isa) -> None:
    _, notes = noted(isa, rich(isa))
    found = set(notes.values())
    read = "probe_read file->f_mode"
    assert found >= {
        ("condition", read),
        ("condition",),
        ("condition", "a fault: counted"),
        ("hist($elapsed)",),
        *(("count by (mode, name)", part) for part in ("lookup", "no room: counted", "update", "a fault: counted")),
        ("count by (mode, name)", "key file->f_mode", read),
        ("count by (mode, name)", "key str(name)", "probe_read"),
        *(("record(mode, name)", part) for part in ("a place in the ring", "time, kind, CPU", "publish")),
        ("record(mode, name)", "file->f_mode", read),
        ("record(mode, name)", "str(name)", "probe_read"),
        ("record(mode, name)", "a fault: the record is void"),
        ("stop",),
        ("restored",),
    }
    assert any(part[0].startswith("saved: ") for part in found if part)


@pytest.mark.parametrize("isa", [X86_64, PPC64LE, AARCH64])
def test_notes_cover_the_code_without_gaps(isa: Isa) -> None:
    code, notes = noted(isa, rich(isa))
    at = AT[isa]
    begins = {insn.address for insn in isa.decode(code, at)} | {at + len(code)}
    assert min(notes) == at and begins.issuperset(notes)
    assert [place for place, part in notes.items() if not part] in ([], [at + len(code)])


def test_joined_code_has_the_notes_of_all_parts() -> None:
    at, program = AT[X86_64], Program(None, (Update(Cell("sum(1)", Powers(False)), Constant(1)),))
    code = lower(program, LoweringContext(at, (at + 0x1000,)), X86_64.codegen)
    size = len(code(at))
    found = notes_of(joined((code, lambda to: b"\x90", code)), at)
    assert found[at] == found[at + size + 1] and found[at + size] == ()
    assert notes_of(lambda to: b"\x90", at) == {}
