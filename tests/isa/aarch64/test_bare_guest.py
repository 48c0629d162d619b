"""A session on a bare-metal guest: each instruction that moves is counted, and nothing else changes."""

from __future__ import annotations

import unicorn
from unicorn import arm64_const

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.abi import GENERAL
from gdb_optprobe.probes.spec import Spec
from tests.fake_guest import CODE, DATA, FILL, JOURNAL, START, Body, Cpu, FakeGuest

NUMBERS = tuple(getattr(arm64_const, f"UC_ARM64_REG_{name.upper()}") for name in (*GENERAL, "sp", "pc", "nzcv"))
CPU = Cpu(AARCH64, (unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM), NUMBERS, {"x1": 3, "x16": 5, "x17": 7})
LOOP, VICTIM = START, START + 0x1000
VICTIM_CODE = bytes.fromhex(
    "fd7bbfa9"  # stp x29, x30, [sp, #-16]!
    "200400b1"  # adds x0, x1, #1
    "21000091"  # add x1, x1, #0
    "0104009b"  # madd x1, x0, x0, x1
    "40000010"  # adr x0, .+8
    "fd7bc1a8"  # ldp x29, x30, [sp], #16
    "c0035fd6"  # ret
    "0000005c"  # ldr d0, .
)
LOOP_CODE = AARCH64.branch(LOOP, VICTIM)[:3] + b"\x94" + AARCH64.branch(LOOP + 4, LOOP)  # bl; b


def guest() -> FakeGuest:
    """Return a bare-metal guest of which the threads call VICTIM again and again."""
    arena = Arena(Ranges(((CODE, JOURNAL),), ((DATA, DATA + 0x1000),), FILL))
    made = FakeGuest((Body("loop", LOOP, LOOP_CODE), Body("victim", VICTIM, VICTIM_CODE)), AARCH64, arena, cpu=CPU)
    made.start_threads(LOOP)
    return made


def test_every_instruction_that_moves_is_counted_and_changes_nothing_else() -> None:
    probed, alone = guest(), guest()
    session = probed.session()
    moving = [insn for insn in AARCH64.decode(VICTIM_CODE, VICTIM) if AARCH64.hazard(insn) is None]
    assert len(moving) == 7
    views = [session.add(Spec(f"*{insn.address:#x}"))[0] for insn in moving]
    assert {view.tier for view in views} == {"optimized"}
    for _ in range(10):
        assert probed.run_to(0, LOOP) == alone.run_to(0, LOOP)
    assert [view.hits for view in session.views()] == [10] * len(moving)
    session.delete()
    assert probed.read_text() == alone.read_text()


def test_what_does_not_move_stops_the_guest() -> None:
    session = guest().session()
    (view,) = session.add(Spec(f"*{VICTIM + 0x1C:#x}"))
    assert view.tier == "breakpoint" and view.reason is not None and view.reason.code == "NOT_RELOCATABLE"
