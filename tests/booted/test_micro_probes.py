"""Every hazard of the bare-metal guests leaves the same registers, flags and memory with a probe on it as without."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qemu import micro
from tests.booted.batch import MARK, batch, keep
from tests.booted.conftest import FULL, Boot
from tests.booted.micro_table import LAYOUTS, STATES, TIERS

SUBSETS = 40 if FULL else 2


@dataclass(frozen=True)
class Expected:
    """What a guest's probes must come to. By tier, where "" is the best for each hazard:

    enough:     how many hazards it can take, at least.
    neighbours: functions whose every instruction is probed.
    may_differ: what its probe may change.
    never:      hazards that no tier takes, with the reason.
    at_load:    hazards behind a load that reserves memory, which has their probe; RESERVED where it has not that tier.
    too_far:    hazards that no copy in the arena can come back from.
    runs_on:    hazards with a load that GDB steps over wrongly: no tier that stops the guest counts it.
    turns:      hazards in loops, with the hits that they have in all states together.
    cpus:       to try; "" is the guest's own.
    """

    enough: dict[str, int]
    neighbours: int
    may_differ: dict[str, set[str]] = field(default_factory=dict)
    never: dict[str, str] = field(default_factory=dict)
    at_load: frozenset[str] = frozenset()
    too_far: frozenset[str] = frozenset()
    runs_on: frozenset[str] = frozenset()
    turns: dict[str, int] = field(default_factory=dict)
    cpus: tuple[str, ...] = ("",)


SYSTEM, TRAP = "changes the machine's state", "a trap that the kernel knows by its address"
RESERVED = "between a load that reserves memory and its store"
RUNS_ON = "may run on to a store elsewhere"
EXCLUSIVE_LOADS = ("ldxrb", "ldxrh", "ldxr_w", "ldxr", "ldaxr", "ldxp", "ldaxp_w")
FAR = "no free memory for detours is within reach"
EXPECTED = {
    "x86_64": Expected(
        {"": 150, "emulated": 30, "boosted": 100, "breakpoint": 150},
        neighbours=4,
        # Only what runs with its successor keeps what is due behind that: a boosted popf that asks for a single-step
        # trap gets it after the branch back of its copy, and a step over sti in QEMU's stub may end the shadow.
        may_differ={"boosted": {"trap_behind_popf"}, "breakpoint": {"interrupt_behind_sti"}},
        turns={
            **dict.fromkeys(("loop_back", "loop_self", "jump_back_to_site", "neighbours_narrow"), 10),
            "loope": 7,
            "call_back_to_site": 16,
        },
    ),
    "ppc64le": Expected(
        {"": 390, "emulated": 120, "boosted": 380, "breakpoint": 390},
        neighbours=5,
        too_far=frozenset(("b_distant", "bl_distant", "beyond_any_branch")),
        never={
            **dict.fromkeys(("sc", "scv", "mtmsrd", "mtmsrd_ri", "mtmsr", "mtmsrd_without_fp", "rfid"), SYSTEM),
            **dict.fromkeys(("tw_equal", "td_less", "tdi_never", "twi_always"), TRAP),
            "trap": "a breakpoint instruction that is not optprobe's",
        },
        at_load=frozenset(
            ("compare_exchange", *(f"l{size}arx_{place}" for size in "bhwd" for place in ("inside", "store")))
        ),
        turns={"bdnz_self": 11, "bdnz_back": 11, "loop_head": 12, "bdnzt_back": 8, "neighbours_narrow": 16},
    ),
    "aarch64": Expected(
        {"": 400, "emulated": 100, "boosted": 400, "breakpoint": 400},
        neighbours=5,
        too_far=frozenset(("b_distant", "bl_distant", "beyond_any_branch", "adrp_far")),
        never={
            **dict.fromkeys(("svc", "hvc_nothing", "smc", "dcps1", "eret"), SYSTEM),
            **dict.fromkeys(("brk_bug", "hlt", "udf"), TRAP),
            "brk_plain": "a breakpoint instruction that is not optprobe's",
        },
        at_load=frozenset(
            (
                *("compare_exchange", "waits_for_a_store"),
                *(f"{load}_{place}" for load in EXCLUSIVE_LOADS for place in ("inside", "store")),
            )
        ),
        runs_on=frozenset(("ldar", "ldarb", "waits_for_a_store")),
        turns={
            **dict.fromkeys(("b_back", "cbnz_back"), 11),
            "tbz_back": 15,
            "loop_head": 12,
            "bl_again": 8,
            "neighbours_narrow": 20,
        },
        # Counts with exclusive access, and with the atomics of Armv8.1; signed pointers and landing pads.
        cpus=("cortex-a72", "max"),
    ),
}
WAIT = {"interrupted", "interrupted_rep"}
"""Hazards in a loop that an interrupt ends."""
GUESTS = [(arch, cpu) for arch, expected in EXPECTED.items() for cpu in expected.cpus]

ARENA = (
    'python t, d = (int(gdb.parse_and_eval(f"(unsigned long)&{n}")) for n in ("arena_text", "arena_data")); '
    'gdb.execute(f"set optprobe arena code={t:#x}-{t + 65536:#x} data={d:#x}-{d + 65536:#x}")'
)
COMMANDS = f"source {Path(__file__).with_name('probe_hazards.py')}"
ONE_ROUND = ["set var *(long*)&go = 1", "tbreak *&done", "optprobe run"]


READY = ["set breakpoint always-inserted on", ARENA, COMMANDS, *ONE_ROUND]
"""Lines that give GDB an arena and our commands, and let the guest run its table once. Hundreds of breakpoints, taken
out and put back at every stop, would be most of the time.
"""


@pytest.mark.parametrize("tier", TIERS if FULL else ("", "emulated", "boosted"))
@pytest.mark.parametrize(("arch", "cpu"), GUESTS)
def test_every_hazard_in_every_tier(boot: Boot, tmp_path: Path, arch: str, cpu: str, tier: str) -> None:
    expected, layout = EXPECTED[arch], LAYOUTS[arch]

    def dump(name: str) -> str:
        return f"dump binary memory {tmp_path}/{name} &results ((char*)&results)+{layout.size}"

    def left(name: str) -> list[bytes]:
        return layout.settled((tmp_path / name).read_bytes())

    script = [
        *READY,
        dump("before"),
        f'python print("{MARK}probes"); gdb.execute("probe-hazards {tier}")',
        *ONE_ROUND,
        dump("after"),
        keep("list", "optprobe list"),
        *(INTERRUPTED if arch == "x86_64" else ()),
        "optprobe delete",
        *ONE_ROUND,
        dump("restored"),
    ]
    finished = batch(boot(arch=arch, micro=True, cpu=cpu), script, symbols=micro.build(arch))
    assert finished.status == 0, finished.output
    probes = finished.json("probes")
    before, after = left("before"), left("after")
    different = {
        name
        for number, name in enumerate(probes)
        if before[STATES * number :][:STATES] != after[STATES * number :][:STATES]
    }
    assert different <= expected.may_differ.get(tier, set())
    assert left("restored") == before
    tiers = Counter(outcome for number, outcome in probes.values() if number)
    assert sum(tiers.values()) >= expected.enough[tier], probes
    listed = {probe["number"]: probe for probe in finished.json("list")}
    others = {name for name, (number, outcome) in probes.items() if number and tier not in ("", outcome)}
    assert not others, "the tier that is asked for is got or refused"
    too_far = {name for name, (number, why) in probes.items() if (is_too_far(listed[number]) if number else FAR in why)}
    assert too_far == (expected.too_far if tier in ("", "boosted") else set())
    never = {name: why for name, why in expected.never.items() if why not in probes[name][1]}
    assert not never, {name: probes[name] for name in never}
    runs_on = {name for name, (number, why) in probes.items() if not number and RUNS_ON in why}
    assert runs_on == (expected.runs_on if tier else set()), "where a hit must stop"
    behind_loads = [probes[name] for name in expected.at_load - runs_on]
    assert all(not number and RESERVED in why if tier == "emulated" else number for number, why in behind_loads)
    hits = {number: probe["hits"] for number, probe in listed.items()}
    # Those that the CPU lacks are not run at all; every other is run once with each of the states.
    ran = {name for place, name in enumerate(probes) if any(before[STATES * place])}
    # The turns of a string instruction are one hit.
    counted = {name: hits[number] for name, (number, _) in probes.items() if number}
    due = {name: expected.turns.get(name, STATES) if name in ran else 0 for name in counted}
    for name in due.keys() & WAIT:
        assert counted.pop(name) >= due.pop(name), name
    assert counted == due, {name: (counted[name], due[name]) for name in due if counted[name] != due[name]}
    if arch == "x86_64":
        assert any(name.startswith("rep") for name in due) or tier == "emulated"
        start, end = finished.json("copies")
        interrupted = finished.json("interrupted") & (1 << 64) - 1
        inside = start <= interrupted < end
        assert inside or tier not in ("", "boosted"), "rep is interrupted in its copy, and goes on there"


def is_too_far(probe: dict[str, Any]) -> bool:
    return probe["reason"] is not None and probe["reason"]["code"] == "ARENA_OUT_OF_REACH"


INTERRUPTED = (
    f'python print("{MARK}interrupted"); print(int(gdb.parse_and_eval("*(long*)&interrupted_rep_at")))',
    f'python print("{MARK}copies"); print([t, t + 65536])',
)


@pytest.mark.parametrize(("arch", "cpu"), GUESTS)
def test_neighbours_are_counted_exactly_whichever_of_them_are_there(boot: Boot, arch: str, cpu: str) -> None:
    others = EXPECTED[arch].turns.keys() - {"neighbours_narrow"}
    script = [*READY, f"probe-neighbours {arch} 1 {SUBSETS} {' '.join(sorted(others))}", "optprobe check"]
    finished = batch(boot(arch=arch, micro=True, cpu=cpu), script, symbols=micro.build(arch))
    assert finished.status == 0, finished.output
    functions = finished.json("neighbours")
    assert len(functions) == EXPECTED[arch].neighbours + len(others)
    for name, (expected, rounds) in functions.items():
        assert len(rounds) == 1 + len(expected) + SUBSETS and min(expected) > 0, name
        for hits, tiers, equal in rounds:
            assert equal, f"{name} leaves something else with {hits}"
            wanted = [count if hit is not None else None for hit, count in zip(hits, expected, strict=True)]
            assert hits == wanted, f"{name}: {tiers}"
        print(name, Counter(tier for _, tiers, _ in rounds for tier in tiers))
