"""A detour takes what it needs, to the last byte of the arena."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from gdb_optprobe.detours.arena import Arena, Ranges
from gdb_optprobe.detours.arena_contents import ArenaContents
from gdb_optprobe.detours.detour import Detour
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.slots import Alignment, Slot
from gdb_optprobe.guest.guest import Guest
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.installed_detour import InstalledDetour
from tests.detours.fakes import FakeMemory

HEAD = 0xC000_0000_0010_0000
CODE = (0xC000_0000_0100_0000, 0xC000_0000_0100_00C0)


def placed_until_full(isa: Isa, size: int) -> tuple[list[InstalledDetour], str]:
    memory = FakeMemory(CODE[0], bytes(CODE[1] - CODE[0]))
    guest = cast(Guest, SimpleNamespace(isa=isa, machine=memory, moment=lambda: 0))
    arena = Arena(Ranges((CODE,), (), 0), isa.alignment)
    found: list[InstalledDetour] = []
    with pytest.raises(Refused) as refused:
        while True:
            found.append(
                InstalledDetour.install(HEAD, lambda at: Detour(at, bytes([1]) * size, HEAD, ()), guest, arena)
            )
    assert sum(one.slot.size for one in found) == arena.code.used
    return found, refused.value.reason.code


@pytest.mark.parametrize(
    ("isa", "size", "number"),
    [
        (PPC64LE, 44, 4),  # four steps of 44 bytes; of 48, four too
        (PPC64LE, 36, 5),  # with steps of 8 bytes it would be four
        (PPC64LE, 192, 1),
        (X86_64, 44, 4),
        (X86_64, 36, 4),
        (X86_64, 192, 1),
    ],
)
def test_as_many_as_fit(isa: Isa, size: int, number: int) -> None:
    found, code = placed_until_full(isa, size)
    assert len(found) == number
    assert code == "ARENA_FULL"


def test_a_detour_that_is_shorter_where_it_is_aligned_takes_no_more_there() -> None:
    """Where a trial is not, it takes one instruction more."""
    memory = FakeMemory(CODE[0], bytes(CODE[1] - CODE[0]))
    guest = cast(Guest, SimpleNamespace(isa=PPC64LE, machine=memory, moment=lambda: 0))
    arena, aligned = Arena(Ranges((CODE,), (), 0), PPC64LE.alignment), Alignment(64, 8)
    arena.allocate_code(20, HEAD, PPC64LE.branch_reach)

    def lay_out(at: int) -> Detour:
        return Detour(at, bytes([1]) * (16 if at == aligned.up(at) else 20), HEAD, ())

    placed = [InstalledDetour.install(HEAD, lay_out, guest, arena, aligned=aligned) for _ in range(2)]
    assert [one.slot for one in placed] == [Slot(CODE[0] + 56, 16), Slot(CODE[0] + 120, 16)]


def test_a_trial_takes_nothing() -> None:
    arena = Arena(Ranges((CODE,), (), 0), PPC64LE.alignment)
    assert arena.free_code(HEAD, PPC64LE.branch_reach) == CODE[0] == arena.free_code(HEAD, PPC64LE.branch_reach)
    assert arena.code.used == 0
    arena.allocate_code(4, HEAD, PPC64LE.branch_reach)
    assert arena.free_code(HEAD, PPC64LE.branch_reach) == CODE[0] + 4


def test_a_trial_finds_no_memory_where_none_is_within_reach() -> None:
    arena = Arena(Ranges((CODE,), (), 0), PPC64LE.alignment)
    with pytest.raises(Refused) as refused:
        arena.free_code(CODE[0] - PPC64LE.branch_reach, PPC64LE.branch_reach)
    assert refused.value.reason.code == "ARENA_OUT_OF_REACH"


def test_an_earlier_session_s_code_is_there_again_where_it_is_the_same() -> None:
    """It takes nothing; and it may have been reached, so it is never wiped at once."""
    memory = FakeMemory(CODE[0], bytes([1]) * 16 + bytes(CODE[1] - CODE[0] - 16))
    guest = cast(Guest, SimpleNamespace(isa=PPC64LE, machine=memory, moment=lambda: 0))
    slot = Slot(CODE[0], 16)
    for byte, same in ((1, True), (2, False)):
        arena = Arena(Ranges((CODE,), (), 0), PPC64LE.alignment)
        arena.adopt(ArenaContents(code={slot: Detour(CODE[0], bytes([1]) * 16, HEAD, ())}), memory, X86_64)
        found = InstalledDetour.install_or_reuse(
            HEAD, lambda at, byte=byte: Detour(at, bytes([byte]) * 16, HEAD, ()), guest, arena
        )
        assert (found.installed_at is None, found.slot == slot, bool(arena.retired)) == (same, same, not same)
        found.release(guest, arena, reached=False)
        assert [one.address for one in arena.retired] == [CODE[0]]


@pytest.mark.parametrize(("ran", "left"), [(0, []), (1, [CODE[0]])])
def test_nobody_is_inside_where_no_vcpu_has_run_since(ran: int, left: list[int]) -> None:
    """Whatever words of the stacks look like its addresses: they were there before."""
    memory = FakeMemory(CODE[0], bytes(CODE[1] - CODE[0]))
    moments = [0]
    guest = cast(Guest, SimpleNamespace(isa=PPC64LE, machine=memory, moment=lambda: moments[0]))
    arena = Arena(Ranges((CODE,), (), 0), PPC64LE.alignment)
    placed = InstalledDetour.install(HEAD, lambda at: Detour(at, bytes([1]) * 16, HEAD, ()), guest, arena)
    moments[0] += ran
    placed.release(guest, arena, reached=True)
    assert [one.address for one in arena.retired] == left
    assert memory.read(CODE[0], 16) == bytes([1 if left else 0]) * 16
