"""Programs that share a detour: what one of them reads, no other one overwrites."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.handlers.ir import Binary, Constant, Op, Program, Register, Stop, Update
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes import branch_patch
from gdb_optprobe.probes.branch import PreservedRegisters
from gdb_optprobe.probes.handler import HITS, Handler
from gdb_optprobe.probes.site import Site
from tests.detours.fakes import FakeMemory

AT = {X86_64: 0xFFFFFFFF81000000, PPC64LE: 0xC000000000100000}
DATA = 0x10000
PAD = 0x8000
DEAD = {X86_64: {"rax", "rcx", "carry"}, PPC64LE: {"r9", "r10", "r11", *(f"cr{n}" for n in range(8))}}


def code_of(isa: Isa, *handlers: Handler) -> list[str]:
    """The mnemonics of programs at one address, where flags and some registers are dead."""
    at = AT[isa]
    memory = FakeMemory(at + DATA, bytes(0x1000))
    guest = cast(Guest, SimpleNamespace(isa=isa, machine=memory))
    plan = SimpleNamespace(address=at, dead=Dead(True, frozenset(DEAD[isa])), base=None)
    pad = SimpleNamespace(address=at + PAD)
    nothing = {"counter": None, "readers": None, "pad": pad, "is_return": False}
    enabled = [SimpleNamespace(handler=handler, address=at, **nothing) for handler in handlers]
    site = cast(Site, SimpleNamespace(address=at, plan=plan, enabled=enabled, rethook=None))
    arena = Arena(Ranges((), ((at + DATA, at + DATA + 0x1000),)))
    read = [name for one in handlers for name in (isa.registers if one.stops else one.reads)]
    keeps = PreservedRegisters(frozenset(read), frozenset(name for name in read if read.count(name) > 1))
    code = b""
    for _, program in branch_patch._programs([site], guest, arena, keeps)[at]:
        code += program(at + len(code))
    return [insn.text.split()[0] for insn in isa.decode(code, at)]


@pytest.mark.parametrize(("isa", "flags", "keeps"), [(X86_64, "eflags", "pushfq"), (PPC64LE, "cr", "mfocrf")])
def test_a_count_keeps_the_flags_that_a_later_program_reads(isa: Isa, flags: str, keeps: str) -> None:
    test = Binary(Op.AND, Register(flags), Constant(0x40), 64, False)
    reader = Handler(Program(test, (Update(HITS),)))
    alone, other = code_of(isa, Handler()), code_of(isa, Handler(), Handler())
    assert keeps not in alone + other, "dead, and read by nobody"
    both = code_of(isa, Handler(), reader)
    changes = both.index("lock" if isa is X86_64 else "stdcx.")
    assert keeps in both[:changes]


def test_flags_that_only_a_stop_shows_are_kept_for_it_alone() -> None:
    """Where it does not stop, they are dead; unless another probe reads them."""
    stop = Handler(Program(Register("rdx"), (Update(HITS), Stop())))
    alone, beside = code_of(X86_64, stop), code_of(X86_64, stop, stop)
    assert "popfq" not in alone[alone.index("jmp") :], "dead there"
    assert beside[-1] == "popfq"
