"""Native code does what the interpreter says, and nothing else."""

from __future__ import annotations

import os

import capstone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdb_optprobe.handlers.lowering import lower
from gdb_optprobe.handlers.program import Program
from gdb_optprobe.isa.base import Dead
from gdb_optprobe.isa.x86_64 import X86_64, abi
from gdb_optprobe.isa.x86_64.emitter import MACHINE

from .programs import programs, words
from .running import CODE, DEAD_NAMES, NUMBERS, differences, site, state

EXAMPLES = int(os.environ.get("OPTPROBE_PROGRAMS", "300"))
_numbers = st.fixed_dictionaries({name: words() for name in NUMBERS if name != abi.FLAGS})
_states = st.builds(state, _numbers, st.integers(0, 50), st.integers(0, (1 << 12) - 1))
_dead = st.builds(Dead, st.booleans(), st.frozensets(st.sampled_from(DEAD_NAMES)))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), _states, _dead)
def test_same_as_the_interpreter(program: Program, before: object, dead: Dead) -> None:
    assert not differences(program, before, dead)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), _dead)
def test_all_of_it_is_instructions_and_of_one_size(program: Program, dead: Dead) -> None:
    code = lower(program, site(program, dead), MACHINE)
    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    assert sum(size for _, size, _, _ in engine.disasm_lite(code(CODE), CODE)) == len(code(CODE))
    assert len(code(CODE)) == len(code(CODE + 0x1234_5678)) == len(code(0x5555_0000_0001))
    insns = X86_64.decode(code(CODE), CODE)
    assert sum(map(X86_64.pushed, insns)) == 0
