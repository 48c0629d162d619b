"""On ppc64le, native code does what the interpreter says, and nothing else."""

from __future__ import annotations

import os
from itertools import accumulate

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gdb_optprobe.handlers.program import Program
from gdb_optprobe.isa.ppc64le import PPC64LE

from ..isa.ppc64le.oracle import HERE, needs_oracle
from .power import Trial, differences
from .programs import programs

EXAMPLES = 10_500 if os.environ.get("OPTPROBE_FULL") else 200


def trials(number: int) -> list[Trial]:
    """A process under QEMU takes long to start, so programs are made first and then run together."""
    found: list[Trial] = []

    @settings(
        max_examples=number,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
        database=None,
    )
    @given(programs(), st.integers(0, 1 << 32))
    def collect(program: Program, seed: int) -> None:
        found.append(Trial(program, seed))

    collect()
    return found


@needs_oracle
def test_same_as_the_interpreter() -> None:
    wrong = [f"{found}\n{trial.program}\n{trial.around}" for trial, found in differences(trials(EXAMPLES))]
    assert not wrong, f"{len(wrong)} programs; the shortest:\n{min(wrong, key=len)}"


def test_all_of_it_is_instructions_and_the_stack_is_where_an_unwinder_reckons_it() -> None:
    """On every way through the code: before an instruction r1 is as much lower as those in front of it say."""
    for trial in trials(EXAMPLES // 3):
        insns = PPC64LE.decode(trial.code, HERE)
        assert sum(len(insn.data) for insn in insns) == len(trial.code)
        pushed = list(map(PPC64LE.pushed, insns))
        places = (*(insn.address for insn in insns), HERE + len(trial.code))
        depths = dict(zip(places, accumulate(pushed, initial=0), strict=True))
        assert depths[places[-1]] == 0
        for insn in insns:
            if insn.target is not None:
                assert depths[insn.target] == depths[insn.address]
