"""How much of a stock kernel's code can carry an optimized probe, and that the planner says the same in GDB."""

from __future__ import annotations

import json
import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import pytest

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.guest.text import Area
from qemu.guest import Guest
from qemu.survey import EVERY, Subject, codes_of, functions, returns, subject_of, survey, table
from tests.booted.batch import batch
from tests.booted.conftest import FULL

WHOLE, ANSWERS, ALIKE = 1 if FULL else 40, 61, 0.02
ASKED = 150  # of each kind: those that are refused, those that are not
PROBES = 80
NO_RETURN = {"RETURN_NOT_ENTRY", "RETURN_NEVER", "RETURN_UNTRACED", "RETURN_ELSEWHERE"}
NO_RETURN |= {"ENTRY_TEXT", "EARLY_TEXT", "COPIED_TEXT", "KERNEL_TRAP", "UNDECODABLE"}
TRACING = "/sys/kernel/tracing"


@dataclass(frozen=True)
class Expected:
    """share: of instructions that are optimizable, at least. reasons: how many kinds of answer there are, at least.

    returns: of functions whose return can be probed, at least.
    """

    share: float
    reasons: int
    returns: float


EXPECTED = {"x86_64": Expected(0.90, 6, 0.92), "ppc64le": Expected(0.98, 5, 0.97), "aarch64": Expected(0.97, 5, 0.97)}


def test_most_instructions_are_optimizable(each_linux: Guest) -> None:
    subject, expected = subject_of(each_linux), EXPECTED[each_linux.options.arch]
    sample = survey(subject, functions(subject, EVERY[each_linux.options.arch]))
    print("\n".join([*sample.listing(subject), "", *table(subject, sample)]))
    print(f"\n{sample.share:.2%} of {sample.instructions:,}; by Linux's own rule {sample.share_by_linux:.2%}")
    assert sample.functions > 100
    assert sample.instructions > 5_000
    assert sample.share >= expected.share
    assert sample.share_by_linux < sample.share

    began = time.monotonic()
    whole = survey(subject, functions(subject, WHOLE))
    took = time.monotonic() - began
    print("\n".join(["", *table(subject, whole)]))
    print(f"\n{whole.share:.2%} of {whole.instructions:,} in {took:.1f} s, {whole.seconds:.1f} s of processor time")
    print("\n".join(["", *returns(whole)]))
    assert whole.share == pytest.approx(sample.share, abs=ALIKE)
    can = whole.returns[""]
    assert can >= expected.returns * whole.functions
    assert can > 1.1 * whole.traced, "those without a tracer's site too"
    assert whole.traced > whole.functions / 2, "the tracer's sites are known"
    assert set(whole.returns) <= {"", *NO_RETURN}

    assert len(_same_answers_in_gdb(each_linux, subject)) >= expected.reasons


def _same_answers_in_gdb(linux: Guest, subject: Subject) -> set[str]:
    """Ask `optprobe explain` about some hundred instructions from all over the text; the answers, each once."""
    cfgs = CfgCache(subject.isa, subject.text)
    starts = [start for start in functions(subject, ANSWERS) if subject.text.area(start) is Area.TEXT]
    codes = {at: code for start in starts for at, code in codes_of(start, cfgs).items()}
    chosen = [*_some([at for at in codes if codes[at]]), *_some([at for at in codes if not codes[at]])]
    finished = batch(linux, [f"optprobe explain *{at:#x} -json" for at in chosen])
    assert finished.status == 0, finished.output
    lines = [json.loads(line) for line in finished.output.splitlines() if line.startswith("{")]
    told = [line["refused"][0]["code"] if line["refused"] else "" for line in lines]
    assert dict(zip(chosen, told, strict=True)) == {at: codes[at] for at in chosen}
    return set(told)


@pytest.mark.parametrize("each_linux", ["linux", "ppc_guest"], indirect=True)
def test_linux_optimizes_where_its_rule_is_said_to_let_it(each_linux: Guest) -> None:
    """On aarch64 it optimizes none."""
    linux = each_linux
    subject = subject_of(linux)
    expected = dict(_kprobes(subject))
    linux.check(f"mount -t tracefs tracefs {TRACING} 2>/dev/null; true")
    for number, (location, _) in enumerate(expected.values()):
        linux.run(f"echo 'p:survey/at_{number} {location}' >> {TRACING}/kprobe_events")  # some it refuses
    try:
        linux.check(f"echo 1 > {TRACING}/events/survey/enable")
        wanted = {address for address, (_, optimizable) in expected.items() if optimizable}
        deadline = time.monotonic() + 30
        # It optimizes some tenths of a second later, and all at once or in turns.
        while (known := _armed(linux, expected)) and {at for at in known if known[at]} != wanted & known.keys():
            assert time.monotonic() < deadline, {hex(at) for at in known if known[at] != (at in wanted)}
        assert len(known) > PROBES // 2
        assert len(wanted & known.keys()) > PROBES // 5
    finally:
        linux.check(f"echo 0 > {TRACING}/events/survey/enable; echo > {TRACING}/kprobe_events")


def _kprobes(subject: Subject) -> Iterator[tuple[int, tuple[str, bool]]]:
    """Addresses all over the text, one in a function, with their names and whether Linux is said to optimize there.

    Of traced functions: Linux's events refuse others and complain, its rule does not.
    """
    cfgs = CfgCache(subject.isa, subject.text)
    starts = functions(subject)
    for number, start in enumerate(starts[:: len(starts) // PROBES]):
        function, insns = subject.text.function(start), list(codes_of(start, cfgs))
        name = str(subject.symbols.at(start))
        traced = function is not None and subject.text.ftrace_sites(function.start, function.end)
        if function is not None and traced and "." not in name and len(subject.symbols.lookup(name)) == 1:
            address = insns[number % len(insns)]
            optimizable = address in {insn.address for insn in subject.rule.optimizable(function)}
            yield address, (f"{name}+{address - start}", optimizable)


def _armed(linux: Guest, among: Container[int]) -> dict[int, bool]:
    """The guest's kprobes, but its own of the boot, and whether each is optimized."""
    lines = linux.check("sleep 0.5; cat /sys/kernel/debug/kprobes/list").splitlines()
    found = {int(line.split()[0], 16): "[OPTIMIZED]" in line for line in lines}
    return {address: optimized for address, optimized in found.items() if address in among}


def _some(addresses: Sequence[int]) -> Sequence[int]:
    assert len(addresses) >= ASKED
    return addresses[:: len(addresses) // ASKED][:ASKED]
