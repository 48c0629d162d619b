"""GDB is killed again and again while probes come and go in a guest that works: soak.py keeps a model beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qemu.kernels import MODULES
from tests.booted.conftest import ACCELERATOR, EVERY_ISA, FULL, Boot
from tests.booted.soak import soak
from tests.booted.test_hot_functions import tell

KILLS = int(os.environ.get("OPTPROBE_KILLS", "1000" if FULL else "4"))
SEED = int(os.environ.get("OPTPROBE_SEED", "1"))
WITHOUT = os.environ.get("OPTPROBE_WITHOUT", "")


@pytest.mark.timeout(0 if FULL else 600)
@pytest.mark.parametrize("arch", ["x86_64", "ppc64le", *["aarch64"] * EVERY_ISA])
def test_soak(boot: Boot, tmp_path: Path, capsys: pytest.CaptureFixture[str], arch: str) -> None:
    """OPTPROBE_KILLS, OPTPROBE_SEED. OPTPROBE_WITHOUT: a pattern of what is not tried."""
    ram = tmp_path / "ram"
    memory = f"memory-backend-file,id=ram,size=512M,share=on,mem-path={ram}"
    extra = (*ACCELERATOR, "-object", memory, "-machine", "memory-backend=ram")
    guest = boot(arch=arch, extra=extra, modules=MODULES if arch == "x86_64" else ())
    done = soak(guest, ram, SEED, KILLS, lambda text: tell(capsys, text), WITHOUT)
    tell(capsys, f"{arch}: {dict(done.told)}")
    assert done.told["kills"] == KILLS
