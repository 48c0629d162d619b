"""The ways through code: how many instructions they take, and what they do to the stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .base import Flow, Insn


def shortest(code: Sequence[Insn]) -> int:
    """Instructions of the shortest way from the first to behind the last; jumps out of `code` are none."""
    if not code:
        return 0
    end = code[-1].end
    by_address = {insn.address: insn for insn in code}
    reached, seen, steps = {code[0].address}, set[int](), 0
    while reached and end not in reached:
        seen |= reached
        following = (at for address in reached for at in _next(by_address[address]))
        reached = {at for at in following if (at in by_address or at == end) and at not in seen}
        steps += 1
    return steps if end in reached else len(code)


def depth(code: Sequence[Insn], at: int, pushed: Callable[[Insn], int]) -> int:
    """By how many bytes the ways from the first instruction to `at` move the stack pointer down: all by as many.

    at:     reached by falling through or by a jump forwards.
    pushed: by how many an instruction does.
    """
    depths = {code[0].address: 0} if code else {}
    for insn in code:
        if insn.address in depths:
            for follower in _next(insn):
                depths.setdefault(follower, depths[insn.address] + pushed(insn))
    return depths.get(at, 0)


def _next(insn: Insn) -> tuple[int, ...]:
    after = (insn.end,) if insn.falls_through else ()
    jumps = insn.flow in (Flow.JUMP, Flow.BRANCH) and insn.target is not None
    return (*after, insn.target) if jumps and insn.target is not None else after
