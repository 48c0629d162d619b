"""On aarch64, native code does what the interpreter says, and nothing else."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gdb_optprobe.handlers.ir import Program
from tests.examples import examples

from . import running
from .arm import Trial, differences
from .programs import programs, timed_programs, wild_programs

EXAMPLES = int(os.environ.get("OPTPROBE_PROGRAMS", "10500" if os.environ.get("OPTPROBE_FULL") else examples(200)))


def check(number: int, made: st.SearchStrategy[Program]) -> None:
    found: list[str] = []

    @settings(
        max_examples=number,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
        database=None,
    )
    @given(made, st.integers(0, 1 << 32))
    def look(program: Program, seed: int) -> None:
        trial = Trial(program, seed)
        found.extend(f"{what}\n{trial.program}\n{trial.around}" for _, what in differences([trial]))

    look()
    assert not found, f"{len(found)} programs; the shortest:\n{min(found, key=len)}"


def test_same_as_the_interpreter() -> None:
    check(EXAMPLES, programs())


def test_wild_pointers_are_faults() -> None:
    check(EXAMPLES, wild_programs((running.DATA, running.DATA, running.ALIAS, 1 << 63)))


def test_all_of_a_hit_reads_the_clock_once() -> None:
    check(EXAMPLES, timed_programs())
