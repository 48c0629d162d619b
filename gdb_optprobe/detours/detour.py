"""Lay out a detour: the code a branch leads to.

    probed function            detour slot (code)                    data
    ┌───────────────┐          ┌────────────────────────────┐        ┌─────────┐
    │ jmp ──────────┼────────► │ program of the first insn  ├──────► │ counter │
    │ (5 bytes)     │          │   lock inc (counter)       │        └─────────┘
    │               │          ├────────────────────────────┤
    │               │          │ first insn, rewritten for  │
    │               │          │   its new address          │        ┌─────────┐
    │               │          ├────────────────────────────┤   ┌──► │ counter │
    │               │          │ program of the second      ├───┘    └─────────┘
    │               │          │ second insn                │
    │ next insn ◄───┼───┐      │ …                          │
    └───────────────┘   └──────┼ jmp back                   │
                               └────────────────────────────┘
A boosted copy is the same without a program. If a trap leads here, the landing comes first. At an ftrace site the
displaced nop is left out. Where an ISA has pools, words that programs read lie behind the last branch.

The unwinder and the stepper show each PC in it as an original address: inside a program, that of its instruction, which
has not begun; inside the copy of a displaced instruction, that of this instruction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.isa.base import Code, Flow, Insn, PooledCode, with_pool, words_of
from gdb_optprobe.isa.record import Isa, counting, pooled


@dataclass(frozen=True, slots=True)
class Detour:
    """Code in guest memory that runs in place of the instructions from `head` on.

    origins:  (address in the detour, original address) of each displaced instruction, its program included, and of the
              branch back.
    programs: (start, end, original address) of each program.
    exits:    the branches out of the detour, at their addresses there: the one back, and the displaced ones.
    """

    address: int
    data: bytes
    head: int
    origins: tuple[tuple[int, int], ...]
    programs: tuple[tuple[int, int, int], ...] = ()
    exits: tuple[Insn, ...] = ()

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def end(self) -> int:
        return self.address + len(self.data)

    def original_pc(self, pc: int) -> int | None:
        """Return the original address that `pc` is shown as; None outside the detour."""
        if not self.address <= pc < self.end:
            return None
        place = bisect_right(self.origins, pc, key=lambda origin: origin[0])
        return self.origins[place - 1][1] if place else self.head

    @property
    def original_addresses(self) -> frozenset[int]:
        """Return the original addresses of the PCs inside, and those that the exits lead to."""
        originals = {original for _, original in self.origins}
        return frozenset(originals | {insn.target for insn in self.exits if insn.target is not None})

    def after_program(self, original: int) -> int | None:
        """Return the copy of the instruction at `original`, behind its program; None if it is not in the detour."""
        behind = next((end for _, end, insn in self.programs if insn == original), None)
        return self.address_of(original) if behind is None else behind

    def address_of(self, original: int) -> int | None:
        """Return the address in the detour that is shown as `original`; None if there is none."""
        return next((at for at, origin in self.origins if origin == original), None)


def build_detour(plan: Plan, isa: Isa, at: int, programs: Mapping[int, Code] | None = None) -> Detour:
    """Lay out the detour of `plan` at the address `at`; programs are by the address of the instruction they run before.

    Without a program it is a boosted copy. Raises Unrelocatable or OutOfReach if `at` is not possible.
    """
    programs = programs or {}
    data, origins = lay_out(plan, isa, at, programs)
    sizes = {original: len(program(at)) for original, program in _reading(programs, at).items()}
    branches = (insn for insn in isa.decode(data, at) if insn.flow in (Flow.JUMP, Flow.BRANCH))
    return Detour(
        address=at,
        data=data,
        head=plan.head,
        origins=origins,
        programs=tuple((start, start + sizes[insn], insn) for start, insn in origins if insn in sizes),
        exits=tuple(insn for insn in branches if insn.target is not None and not at <= insn.target < at + len(data)),
    )


def lay_out(
    plan: Plan, isa: Isa, at: int, programs: Mapping[int, Code]
) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """Return the code of a detour, and its origins: what is known without decoding it. Raises as `build_detour`."""
    if not (words := words_of(programs.values())):
        return _lay_out(plan, isa, at, programs)
    origins: tuple[tuple[int, int], ...] = ()

    def encode(pool: int) -> bytes:
        nonlocal origins
        code, origins = _lay_out(plan, isa, at, _reading(programs, pool))
        return code

    return pooled(isa, at, words, encode), origins


def _reading(programs: Mapping[int, Code], pool: int) -> Mapping[int, Code]:
    """Return the programs, those that read the detour's pool with that at an address."""
    return dict(zip(programs, with_pool(programs.values(), pool), strict=True))


def _lay_out(
    plan: Plan, isa: Isa, at: int, programs: Mapping[int, Code]
) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    landing = isa.landing if plan.tier is Tier.TRAPPED else b""
    start = at + len(landing)
    if plan.ftrace is not None:
        first = programs[plan.head](start) if plan.head in programs else b""
        back = start + len(first)
        return landing + first + isa.branch(back, plan.ftrace.end), ((start, plan.head), (back, plan.ftrace.end))
    alone = plan.dead if plan.displaced == (plan.insn,) else None
    moved = isa.relocate(plan.displaced, start, programs, alone)
    return landing + moved.data, tuple((start + offset, original) for offset, original in moved.origins)


def build_count(plan: Plan, isa: Isa, at: int, counter: int) -> Detour:
    """Lay out a detour that counts the hits of the probed instruction."""
    return build_detour(plan, isa, at, count_program(plan, isa, counter))


def count_code(plan: Plan, isa: Isa, at: int, counter: int) -> bytes:
    """Return the code of `build_count`. Raises as that does."""
    return lay_out(plan, isa, at, count_program(plan, isa, counter))[0]


def moved_anywhere(plan: Plan, isa: Isa) -> bytes | None:
    """Return the copy of what `plan` displaces from the probed instruction on, where it is the same at any address and
    ends before the branch back; None where it is not, or `lay_out` must say.
    """
    displaced = plan.displaced
    if plan.tier is not Tier.OPTIMIZED or plan.ftrace is not None or plan.address != displaced[0].address:
        return None
    for insn in displaced:  # what fills is left out of a copy
        if insn.flow is not Flow.NEXT or not isa.moves_as_it_is(insn) or isa.fills(insn):
            return None
    return b"".join([insn.data for insn in displaced])


def count_program(plan: Plan, isa: Isa, counter: int) -> Mapping[int, Code]:
    """Return the program that counts, by the address of the probed instruction."""
    return {plan.address: counting(isa, counter, plan.dead, plan.base)}


def count_around(plan: Plan, isa: Isa, at: int, counter: int, moved: bytes, end: int) -> bytes:
    """Return the code of `build_count` of which the copy is `moved`, with a branch to `end`. Raises OutOfReach."""
    (program,) = count_program(plan, isa, counter).values()

    def whole(count: Code) -> bytes:
        code = count(at) + moved
        return code + isa.branch(at + len(code), end)

    if not isinstance(program, PooledCode):
        return whole(program)
    return pooled(isa, at, program.words, lambda pool: whole(program.with_pool(pool)))
