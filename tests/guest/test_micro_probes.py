"""Every hazard of the bare-metal guest leaves the same registers, flags and memory with a probe on it as without."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from qemu import micro
from tests.guest.batch import MARK, batch, keep
from tests.guest.conftest import FULL, Boot

RESULT, STATES, MOST = 512, 4, 256
RUNS, TICKS = slice(136, 144), slice(144, 152)
# How many of the hazards each tier can take, at least; "" is the best tier for each.
ENOUGH = {"": 150, "emulated": 30, "boosted": 100, "breakpoint": 150}
SUBSETS = 40 if FULL else 3
RESULTS = RESULT * STATES * MOST
# Only what runs with its successor keeps what is due behind that: a boosted popf that asks for a single-step trap
# gets it after the branch back of its copy, and a single step over sti in QEMU's stub may end the shadow.
MAY_DIFFER = {"boosted": {"trap_behind_popf"}, "breakpoint": {"interrupt_behind_sti"}}


def results(data: bytes) -> list[bytes]:
    """The result records, without what counts the runs and the time."""
    records = [bytearray(data[at : at + RESULT]) for at in range(0, len(data), RESULT)]
    for record in records:
        record[RUNS] = record[TICKS] = bytes(8)
    return [bytes(record) for record in records]


ARENA = (
    'python t, d = (int(gdb.parse_and_eval(f"(unsigned long)&{n}")) for n in ("arena_text", "arena_data")); '
    'gdb.execute(f"set optprobe arena code={t:#x}-{t + 65536:#x} data={d:#x}-{d + 65536:#x}")'
)
COMMANDS = f"source {Path(__file__).with_name('probe_hazards.py')}"
ONE_ROUND = ["set var *(long*)&go = 1", "tbreak done", "optprobe run"]


@pytest.mark.parametrize("tier", ENOUGH)
def test_every_hazard_in_every_tier(boot: Boot, tmp_path: Path, tier: str) -> None:
    guest = boot(micro=True)
    script = [
        f"symbol-file {micro.build('x86_64')}",
        ARENA,
        COMMANDS,
        *ONE_ROUND,
        f"dump binary memory {tmp_path}/before &results ((char*)&results)+{RESULTS}",
        f'python print("{MARK}probes"); gdb.execute("probe-hazards {tier}")',
        *ONE_ROUND,
        f"dump binary memory {tmp_path}/after &results ((char*)&results)+{RESULTS}",
        keep("list", "optprobe list"),
        f'python print("{MARK}interrupted"); print(int(gdb.parse_and_eval("*(long*)&interrupted_rep_at")))',
        f'python print("{MARK}copies"); print([t, t + 65536])',
        "optprobe delete",
        *ONE_ROUND,
        f"dump binary memory {tmp_path}/restored &results ((char*)&results)+{RESULTS}",
    ]
    finished = batch(guest, script)
    assert finished.status == 0, finished.output
    probes = finished.json("probes")
    before, after = results((tmp_path / "before").read_bytes()), results((tmp_path / "after").read_bytes())
    different = [
        name
        for number, name in enumerate(probes)
        if before[4 * number : 4 * number + 4] != after[4 * number : 4 * number + 4]
    ]
    assert set(different) <= MAY_DIFFER.get(tier, set())
    assert results((tmp_path / "restored").read_bytes()) == before
    tiers = Counter(outcome for number, outcome in probes.values() if number)
    assert sum(tiers.values()) >= ENOUGH[tier], probes
    assert not tier or set(tiers) == {tier}
    hits = {probe["number"]: probe["hits"] for probe in finished.json("list")}
    missed = {name: hits[number] for name, (number, _) in probes.items() if number and hits[number] < STATES}
    # Those that the CPU lacks are not run at all; every other is run once with each of the states.
    ran = {name for place, name in enumerate(probes) if any(before[4 * place])}
    assert not {name for name in missed if name in ran}, missed
    if tier in ("", "boosted"):
        start, end = finished.json("copies")
        interrupted = finished.json("interrupted") & (1 << 64) - 1
        assert start <= interrupted < end, "rep is interrupted in its copy, and goes on there"
    strings = {name: hits[number] for name, (number, _) in probes.items() if number and name.startswith("rep")}
    assert set(strings.values()) <= {STATES}, "the turns of a string instruction are one hit"
    assert strings or tier == "emulated"


def test_neighbours_are_counted_exactly_whichever_of_them_are_there(boot: Boot) -> None:
    finished = batch(
        boot(micro=True),
        [
            f"symbol-file {micro.build('x86_64')}",
            ARENA,
            COMMANDS,
            *ONE_ROUND,
            f"probe-neighbours 1 {SUBSETS}",
            "optprobe check",
        ],
    )
    assert finished.status == 0, finished.output
    functions = finished.json("neighbours")
    assert len(functions) == 4
    for name, (expected, rounds) in functions.items():
        assert len(rounds) == 1 + len(expected) + SUBSETS and min(expected) > 0, name
        for hits, tiers, equal in rounds:
            assert equal, f"{name} leaves something else with {hits}"
            wanted = [count if hit is not None else None for hit, count in zip(hits, expected, strict=True)]
            assert hits == wanted, f"{name}: {tiers}"
        print(name, Counter(tier for _, tiers, _ in rounds for tier in tiers))
