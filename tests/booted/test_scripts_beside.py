"""Random scripts of BEGIN alone print what bpftrace 0.23 prints.

$OPTPROBE_PROGRAMS: how many. $OPTPROBE_SEED: of the first one.

What is left out, since bpftrace does it otherwise on purpose or by accident: `Dialect.defined`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from qemu import bpftrace_guest
from qemu.debian import FetchError
from qemu.guest import Guest
from tests.booted import scripts_beside
from tests.booted.scripts_beside import Result
from tests.examples import FULL

COUNT = int(os.environ.get("OPTPROBE_PROGRAMS", 400))
FIRST = int(os.environ.get("OPTPROBE_SEED", 0))
TOGETHER = 40
"""Scripts of one process of bpftrace, which takes some 3 s, and 0.3 for each."""
MOST_WITHOUT = 0.2
"""Of scripts that bpftrace refuses or cannot load: it crashes in LLVM now and then."""


def compared(parts: Sequence[range]) -> Result:
    """Compare scripts in a guest of their own."""
    found = Result()
    options = bpftrace_guest.options(scripts_beside.SUITE, scripts_beside.KERNEL)
    with Guest.start(options, timeout=bpftrace_guest.TIMEOUT) as guest:
        for seeds in parts:
            found.add(scripts_beside.compared(guest, seeds))
            print(f"{seeds.start}…: {found.same} the same, {len(found.differ)} different", flush=True)
    return found


@pytest.mark.skipif(not FULL, reason="boots guests with bpftrace: OPTPROBE_FULL=1")
def test_random_scripts_print_what_bpftrace_prints() -> None:
    try:
        bpftrace_guest.options(scripts_beside.SUITE, scripts_beside.KERNEL)
    except FetchError as error:
        pytest.skip(str(error))
    last = FIRST + COUNT
    parts = [range(at, min(at + TOGETHER, last)) for at in range(FIRST, last, TOGETHER)]
    guests = min(os.cpu_count() or 1, len(parts))
    total = Result()
    with ThreadPoolExecutor(guests) as pool:
        for found in pool.map(compared, (parts[number::guests] for number in range(guests))):
            total.add(found)
    print(total.text())
    assert not total.differ, _shown(*min(total.differ.items(), key=lambda each: len(each[1][0])))
    assert not total.ours
    assert len(total.refused) + len(total.unloaded) <= MOST_WITHOUT * COUNT


def _shown(seed: int, texts: tuple[str, str]) -> str:
    script = scripts_beside.written(scripts_beside.statements(seed))
    return f"seed {seed}: {script}\nbpftrace:\n{texts[0]}\nhere:\n{texts[1]}"
