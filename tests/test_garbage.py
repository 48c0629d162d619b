"""The collector of cycles rests within a block, and is as it was behind it."""

from __future__ import annotations

import gc

import pytest

from gdb_optprobe.garbage import kept, uncollected


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
