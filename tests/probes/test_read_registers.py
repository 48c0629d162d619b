"""What one probe of a function reads, another one's branch there does not overwrite, dead or not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.spec import Spec
from tests.probes.threads import PC, World

RDX = X86_64.registers.index("rdx")
WRITER, READER = 0, 9  # rdx and the flags are dead at both: `pop %rdx` and `add` come before anything reads them
CLOBBERS = "sum($rax * $rcx)"


def add(world: World, where: int, action: str) -> int:
    (view,) = world.session.add(Spec(f"*{world.addresses[where]:#x}", actions=(action,)))
    world.expected[view.number] = 0
    world.session.commit(0)
    world._remember()
    assert view.tier == "optimized"
    return view.number


def seen(world: World, reader: int) -> int:
    (view,) = world.session.reports([reader])
    return view.objects[0].rows[0].words[0]


def run(world: World) -> int:
    """Threads until they have passed the reader; the sum of rdx that those without probes have there."""
    total = 0
    for number, thread in enumerate(world.alone.machine.threads):
        assert thread[PC] == world.addresses[0]
        while world.alone.machine.threads[number][PC] != world.addresses[READER]:
            world.run(number, 1)
        total += world.alone.machine.threads[number][RDX]
        while world.alone.machine.threads[number][PC] != world.addresses[READER + 1]:
            world.run(number, 1)
    return total


@pytest.mark.parametrize("order", [("writer", "reader"), ("reader", "writer")])
def test_a_reader_sees_what_it_would_see_alone(order: Sequence[str]) -> None:
    world = World()
    where = {"writer": (WRITER, CLOBBERS), "reader": (READER, "sum($rdx)")}
    numbers = {name: add(world, *where[name]) for name in order}
    assert run(world) == seen(world, numbers["reader"]) == 6


def test_what_is_read_by_nobody_is_overwritten() -> None:
    """Else nothing is shown here; and who overwrites nothing that is read stays as it is."""
    world = World()
    add(world, WRITER, CLOBBERS)
    before = world.session.registry.branch(world.addresses[WRITER])
    add(world, READER, "sum($rcx)")
    assert world.session.registry.branch(world.addresses[WRITER]) is before
    world.guest.step(0)
    while world.guest.machine.threads[0][PC] not in world.addresses[1:]:
        world.guest.step(0)
    assert world.guest.machine.threads[0][RDX] != 3
