"""A branch is led elsewhere by one write where it serves other probes: a GDB that dies leaves the one or the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from tests.probes.threads import World

CHANGES: tuple[Callable[[Session, str], object], ...] = (
    lambda session, here: session.add(Spec(here)),
    lambda session, here: session.delete([1]),
    lambda session, here: session.disable([2]),
    lambda session, here: session.add(Spec(here, actions=("sum($rax)",))),
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_branch_stands_after_each_write(change: Callable[[Session, str], object]) -> None:
    world = World()
    head = world.addresses[0]
    for _ in range(2):
        world.session.add(Spec(f"*{head:#x}"))
    old = world.session.registry.branch(head)
    assert old is not None
    held: list[bytes] = []
    write = world.guest.machine.write

    def recorded(address: int, data: bytes) -> None:
        write(address, data)
        held.append(world.guest.machine.read(head, len(old.patch.new)))

    world.guest.machine.write = recorded  # type: ignore[method-assign]
    change(world.session, f"*{head:#x}")
    new = world.session.registry.branch(head)
    assert new is not None and new.detour.address != old.detour.address
    assert list(dict.fromkeys(held)) == [old.patch.new, new.patch.new]
    assert new.patch.old == old.patch.old
    world.guest.machine.write = write  # type: ignore[method-assign]
    assert world.session.check() == ()
    world.end()


def test_where_memory_is_full_the_old_branch_goes_first() -> None:
    world = World()
    head = world.addresses[0]
    for _ in range(2):
        world.session.add(Spec(f"*{head:#x}"))
    while (left := world.arena.code.largest) > 8:
        world.arena.code.allocate(left, 0, 1 << 64, head)
    world.session.delete([1])
    (view,) = world.session.views()
    assert (view.number, view.tier) == (2, "optimized")
    assert world.session.check() == ()
