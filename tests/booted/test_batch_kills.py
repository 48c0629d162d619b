"""GDB is killed while thousands of probes come, go and change: batch_kills.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.booted.batch_kills import COMMANDS, kills
from tests.booted.conftest import ACCELERATOR, FULL, Boot
from tests.booted.test_hot_functions import tell

KILLS = int(os.environ.get("OPTPROBE_KILLS", "500" if FULL else "1"))
GLOB = os.environ.get("OPTPROBE_GLOB", "[a-e]*" if FULL else "d*")
ONLY = tuple(filter(None, os.environ.get("OPTPROBE_ONLY", "").split(",")))
SEED = int(os.environ.get("OPTPROBE_SEED", "1"))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("handler", ["", "-return do latency"])
def test_killed_in_a_batch(boot: Boot, tmp_path: Path, capsys: pytest.CaptureFixture[str], handler: str) -> None:
    """OPTPROBE_KILLS, OPTPROBE_SEED, OPTPROBE_GLOB: of functions. OPTPROBE_ONLY: where it is killed, see COMMANDS."""
    guest = boot(extra=ACCELERATOR)
    done = kills(guest, tmp_path, SEED, KILLS, lambda text: tell(capsys, text), GLOB, ONLY or COMMANDS, handler)
    assert done["kills"] == KILLS
