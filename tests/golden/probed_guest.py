"""A guest that runs code on which the version of guest_adopted.txt has left probes; see tests/fake_guest.py."""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.handlers.ir import Constant
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.probes.settings import Settings
from gdb_optprobe.probes.spec import Kind, Spec
from tests.detours.fakes import code
from tests.fake_guest import START, Body, FakeGuest, Registers, trap_calls

LOOP, COMPUTE, TRACED, SHORT, TRAP, HANDLER = (START + 0x1000 * number for number in range(6))
BODIES = (
    Body("loop", LOOP, code("e8 fb 0f 00 00  call COMPUTE\ne8 f6 1f 00 00  call TRACED\ne8 f1 2f 00 00  call SHORT"
                            "\neb ef  jmp LOOP")),
    Body("compute", COMPUTE, code("48 01 c8  add %rcx,%rax\n48 8d 44 40 07  lea\n48 ff c1  inc %rcx\nc3  ret")),
    Body("traced", TRACED, code("0f 1f 44 00 00  nopl\n48 01 c1  add %rax,%rcx\nc3  ret"), tracer=0),
    Body("short", SHORT, code("48 ff c0  inc %rax\nc3  ret")),
    Body("crowding", SHORT + 4, code("c3  ret")),
    Body("asm_exc", TRAP, code("e8 fb 0f 00 00  call HANDLER\nf4  hlt"), entry=True),
    Body("exc", HANDLER, code("0f 1f 44 00 00  nopl\nf4  hlt"), entry=True),
)  # fmt: skip
SPECS: Sequence[Spec] = (
    Spec(f"*{COMPUTE:#x}", condition="$rcx & 1", actions=("hist($rcx)", "count by $rcx & 7", "record($rcx, $rax)")),
    Spec(
        f"*{TRACED:#x}",
        kind=Kind.KRETPROBE,
        condition="$saved.n > 3",
        actions=("sum($saved.n)",),
        entry_condition=Fragment.whole("$rcx > 1"),
        entry_actions=(Fragment.whole("save n = $rcx"), Fragment.whole("max($rcx)")),
    ),
    Spec(f"*{SHORT:#x}", name="short"),
    Spec(f"*{LOOP + 10:#x}", tier="breakpoint"),
    Spec(f"*{COMPUTE + 8:#x}"),
)
DISABLED = 5


def guest(memory: bytes = b"", threads: Sequence[tuple[int, ...]] = ()) -> FakeGuest:
    names = NamesAt(Registers(), cpu=Constant(3))
    settings = Settings(table_keys=4, ring_records=4)
    traps = trap_calls(*BODIES[-2:])
    return FakeGuest(BODIES, traps=traps, names=names, settings=settings, memory=memory, threads=threads)
