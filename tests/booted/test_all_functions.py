"""Every function probed, round after round, under load on four vCPUs: all_functions.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.booted.all_functions import AllFunctions
from tests.booted.conftest import FULL, PARALLEL, Boot
from tests.booted.test_hot_functions import tell

ROUNDS = int(os.environ.get("OPTPROBE_ROUNDS", "100" if FULL else "2"))


@pytest.mark.timeout(0 if FULL else 600)
def test_all_functions(boot: Boot, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """OPTPROBE_ROUNDS: how many."""
    guest = boot(smp=4, extra=PARALLEL)
    rounds = AllFunctions(guest, tmp_path, lambda text: tell(capsys, text))
    rounds.run(ROUNDS)
    assert rounds.probes > 40_000 and rounds.compared > ROUNDS * 10_000
    assert guest.problems() == []
