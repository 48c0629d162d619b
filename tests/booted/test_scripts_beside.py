"""Random scripts of BEGIN alone print what bpftrace 0.23 prints.

$OPTPROBE_PROGRAMS: how many. $OPTPROBE_SEED: of the first one.

What is left out, since bpftrace does it otherwise on purpose or by accident: `Dialect.defined`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from qemu import bpftrace_guest, versions
from qemu.debian import FetchError
from qemu.guest import Guest, Options
from tests.booted import scripts_beside
from tests.booted.scripts_beside import Result
from tests.examples import FULL

COUNT = int(os.environ.get("OPTPROBE_PROGRAMS", 400))
FIRST = int(os.environ.get("OPTPROBE_SEED", 0))
GUESTS = os.cpu_count() or 1
QEMU = "11"
BOOT = 600.0
TOGETHER = 40
"""Scripts of one process of bpftrace, which takes some 0.5 s, and 0.12 for each. Of 80 the kernel loads no program."""
MOST_WITHOUT = 0.2
"""Of scripts that bpftrace refuses or cannot load: it crashes in LLVM now and then."""


def options() -> Options:
    """Return a guest of one vCPU, in the newest QEMU: there bpftrace starts in a third of the time. FetchError."""
    chosen = bpftrace_guest.options(scripts_beside.SUITE, scripts_beside.KERNEL)
    return replace(chosen, smp=1, qemu=str(versions.qemu(QEMU, chosen.arch)))


def compared(parts: Sequence[range]) -> Result:
    """Compare scripts in a guest of their own."""
    found = Result()
    with Guest.start(options(), timeout=BOOT) as guest:
        for seeds in parts:
            some = scripts_beside.compared(guest, seeds)
            found.add(some)
            for differs in some.differ.items():
                print(_shown(*differs), flush=True)
            counts = f"{found.same} the same, {len(found.differ)} different, {found.left_out} left out"
            print(f"up to {seeds.stop - 1}, in one guest of {GUESTS}: {counts}", flush=True)
    return found


@pytest.mark.skipif(not FULL, reason="boots guests with bpftrace: OPTPROBE_FULL=1")
def test_random_scripts_print_what_bpftrace_prints() -> None:
    try:
        options()
    except FetchError as error:
        pytest.skip(str(error))
    last = FIRST + COUNT
    parts = [range(at, min(at + TOGETHER, last)) for at in range(FIRST, last, TOGETHER)]
    total = Result()
    with ThreadPoolExecutor(GUESTS) as pool:
        for found in pool.map(compared, filter(None, (parts[number::GUESTS] for number in range(GUESTS)))):
            total.add(found)
    print(total.text())
    assert not total.differ, _shown(*min(total.differ.items(), key=lambda each: len(each[1][0])))
    assert not total.ours
    assert len(total.refused) + len(total.unloaded) <= MOST_WITHOUT * COUNT


def _shown(seed: int, texts: tuple[str, str]) -> str:
    script = scripts_beside.written(scripts_beside.statements(seed))
    return f"seed {seed}: {script}\nbpftrace:\n{texts[0]}\nhere:\n{texts[1]}"
