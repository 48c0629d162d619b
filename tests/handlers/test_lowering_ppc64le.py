"""On ppc64le, native code does what the interpreter says, and nothing else."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gdb_optprobe.handlers.program import Program
from gdb_optprobe.isa.ppc64le import PPC64LE

from ..isa.ppc64le.oracle import HERE, needs_oracle
from .power import Trial, differences
from .programs import programs

EXAMPLES = 10_500 if os.environ.get("OPTPROBE_FULL") else 300


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
    wrong = [f"{found}\n{trial.program}\n{trial.site}" for trial, found in differences(trials(EXAMPLES))]
    assert not wrong, f"{len(wrong)} programs; the shortest:\n{min(wrong, key=len)}"


def test_all_of_it_is_instructions_and_moves_the_stack_back() -> None:
    for trial in trials(EXAMPLES // 3):
        insns = PPC64LE.decode(trial.code, HERE)
        assert sum(len(insn.data) for insn in insns) == len(trial.code)
        assert sum(map(PPC64LE.pushed, insns)) == 0
