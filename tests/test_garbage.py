"""The collector of cycles rests within a block, and is as it was behind it."""

from __future__ import annotations

import gc

import pytest

from gdb_optprobe.garbage import uncollected


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
