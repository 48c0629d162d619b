"""On aarch64, statements as native code do what the interpreter says, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.lower_expressions import NotLowered
from gdb_optprobe.handlers.lower_program import LoweringContext
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.base import Flow
from gdb_optprobe.isa.paths import depth

from . import running, scripts
from .arm import CODE, FAULTS, Trial
from .test_lower_program_aarch64 import EXAMPLES, check, trials
from .test_lower_program_ppc64le import reached


@dataclass(frozen=True)
class ScriptTrial(Trial):
    """A program of statements, and all else by chance."""

    @cached_property
    def around(self) -> LoweringContext:
        usual = Trial(self.original, self.seed).around
        return replace(usual, maps=scripts.places(self.program, FAULTS))

    @property
    def objects(self) -> Mapping[int, bytes]:
        places = scripts.places(self.program, FAULTS)
        maps = self.maps
        return {**super().objects, **{at: bytes(maps[name].data[:]) for name, at in places.items()}}

    @property
    def maps(self) -> Mapping[str, scripts.SessionMap]:
        """The maps before the hit."""
        return scripts.contents(self.program)

    @property
    def is_lowered(self) -> bool:
        """Whether there is native code for it: not where it takes too many registers, or too much of the stack."""
        try:
            return self.code is not None
        except NotLowered as refused:
            assert "registers" in refused.why or "stack" in refused.why
            return False

    def wrong_results(self, left: running.Left, hit: interpreter.Hit) -> Iterator[str]:
        maps = self.maps
        outcome = interpreter.run(self.program, replace(hit, maps=maps))
        yield from scripts.wrong_results(self.program, left.read, FAULTS, [outcome], maps)


def test_same_as_the_interpreter() -> None:
    check(EXAMPLES, scripts.scripts(3), ScriptTrial)


def test_wild_pointers_are_zeros_or_faults() -> None:
    check(EXAMPLES // 2, scripts.wild_scripts((running.DATA, running.DATA, running.ALIAS, 1 << 63)), ScriptTrial)


def test_all_of_it_is_instructions_and_the_stack_is_where_an_unwinder_reckons_it() -> None:
    for trial in trials(EXAMPLES // 3, scripts.scripts(3), ScriptTrial):
        insns = AARCH64.decode(trial.code, CODE)
        assert sum(len(insn.data) for insn in insns) == len(trial.code)
        assert depth(insns, CODE + len(trial.code), AARCH64.pushed) == 0
        jumps = [insn for insn in reached(insns) if insn.target is not None and insn.flow is not Flow.CALL]
        for insn in jumps[:: len(jumps) // 20 + 1]:
            at, to = (depth(insns, address or 0, AARCH64.pushed) for address in (insn.address, insn.target))
            assert at == to
