"""The collector of cycles rests within a block, and is as it was behind it."""

from __future__ import annotations

import gc
import weakref

import pytest

from gdb_optprobe.garbage import MANY, collect_what_is_over, kept, uncollected


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_rests_within_the_block_alone(collecting: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        with pytest.raises(ValueError, match="any"), uncollected():
            assert not gc.isenabled()
            raise ValueError("any")
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if was else gc.disable)()


def test_what_is_kept_is_not_looked_at_again() -> None:
    was = gc.get_freeze_count()
    try:
        with kept():
            made = [[] for _ in range(1000)]
            assert not gc.isenabled()
        assert gc.get_freeze_count() > was + len(made)
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(("new", "looked_through"), [(MANY // 2, True), (MANY * 2, False)])
def test_thousands_of_new_objects_are_not_looked_through_behind_the_block(new: int, looked_through: bool) -> None:
    was, found = gc.isenabled(), list[str]()

    def seen(phase: str, info: dict[str, int]) -> None:
        found.append(phase)

    gc.callbacks.append(seen)
    try:
        gc.enable()
        gc.collect()
        found.clear()
        with uncollected():
            made = [[] for _ in range(new)]
        more = [[] for _ in range(100)]
        assert bool(found) is looked_through
        assert len(made) + len(more) == new + 100
    finally:
        gc.callbacks.remove(seen)
        gc.unfreeze()
        (gc.enable if was else gc.disable)()


def test_a_session_that_is_over_is_freed_though_it_was_not_to_be_looked_at() -> None:
    class Cycle:
        me: Cycle

    try:
        with kept():
            cycle = Cycle()
            cycle.me = cycle
        seen = weakref.ref(cycle)
        del cycle
        gc.collect()
        assert seen() is not None
        collect_what_is_over()
        assert seen() is None and gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
