"""Addresses that ppc64le code cannot be probed at: between its words, out of reach, out of the code."""

from __future__ import annotations

import pytest

from qemu import micro
from tests.booted.batch import MARK, Finished, batch, keep
from tests.booted.conftest import Boot
from tests.booted.micro_table import TIERS
from tests.booted.test_micro_probes import READY

# What is probed, and what its one line must name.
WRONG = {
    "*((long)&hz_nop_site+1)": "in the middle of the instruction at",
    "*((long)&hz_nop_site+2)": "in the middle of the instruction at",
    "*((long)&hz_pld_site+4)": "<hz_pld+0xc> is in the middle of the instruction at",
    "*((long)&hz_pld_site+6)": "<hz_pld+0xe> is in the middle of the instruction at",
    "*&arena_text": "holds a breakpoint instruction that is not optprobe's",
    "*&scratch": "not in the guest's code",
    "*0x2000": "not in the guest's code",
    "*0x123456789abc": "not in the guest's code",
    "*-4": "not in the guest's code",
}


def said(finished: Finished, name: str) -> str:
    return finished.output.split(f"{MARK}{name}\n")[1].split(MARK)[0]


def attempt(name: str, line: str) -> str:
    return f'python\nprint("{MARK}{name}")\ntry:\n  gdb.execute({line!r})\nexcept gdb.error as e: print(e)\nend'


@pytest.mark.parametrize("tier", TIERS)
def test_no_tier_at_a_wrong_address(boot: Boot, tier: str) -> None:
    option = f" -tier {tier}" if tier else ""
    script = [attempt(str(number), f"optprobe add {place}{option}") for number, place in enumerate(WRONG)]
    script = ["set optprobe exit-on-error off", *READY, *script, keep("list", "optprobe list")]
    finished = batch(boot(arch="ppc64le", micro=True), script, symbols=micro.build("ppc64le"))
    assert finished.status == 0, finished.output
    assert finished.json("list") == []
    for number, (place, named) in enumerate(WRONG.items()):
        answer = said(finished, str(number))
        assert answer.startswith("optprobe: ") and named in answer.splitlines()[0], f"{place}: {answer}"
        assert answer.count("optprobe: ") == 1 and "internal error" not in answer, f"{place}: {answer}"


def test_out_of_a_branch_s_reach(boot: Boot) -> None:
    """The arena is 32 MiB and more away from one, and from what the other branches to."""
    script = ["optprobe add *&hz_beyond_any_branch", "optprobe add *&hz_b_distant_site", keep("list", "optprobe list")]
    finished = batch(boot(arch="ppc64le", micro=True), [*READY, *script], symbols=micro.build("ppc64le"))
    assert finished.status == 0, finished.output
    reasons = {probe["location"]: probe["reason"] for probe in finished.json("list")}
    assert {reason["code"] for reason in reasons.values()} == {"ARENA_OUT_OF_REACH"}
    for reason in reasons.values():
        assert "no free memory for detours is within reach of 0x" in reason["text"]
