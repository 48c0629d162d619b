"""The paths through code: their instructions, and how they move the stack pointer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush

from gdb_optprobe.isa.base import Flow, Insn


def shortest(code: Sequence[Insn], cost: Callable[[Insn], int] = lambda _: 1) -> int:
    """Return the cost of the cheapest path from the first instruction to behind the last, within `code`.

    cost: of one instruction; by default 1, so that they are counted.
    """
    if not code:
        return 0
    end = code[-1].end
    by_address = {insn.address: insn for insn in code}
    cheapest, seen = [(0, code[0].address)], set[int]()
    while cheapest:
        so_far, at = heappop(cheapest)
        if at == end:
            return so_far
        if at in by_address and at not in seen:
            seen.add(at)
            for follower in _next(by_address[at]):
                heappush(cheapest, (so_far + cost(by_address[at]), follower))
    return sum(map(cost, code))


def depth(code: Sequence[Insn], at: int, pushed: Callable[[Insn], int]) -> int:
    """Return by how many bytes every path from the first instruction to `at` moves the stack pointer down.

    pushed: the same of one instruction.
    """
    if not code:
        return 0
    by_address = {insn.address: insn for insn in code}
    depths, waiting = {code[0].address: 0}, [code[0].address]
    while waiting and at not in depths:
        if (insn := by_address.get(waiting.pop())) is None:
            continue
        for follower in _next(insn):
            if follower not in depths:
                depths[follower] = depths[insn.address] + pushed(insn)
                waiting.append(follower)
    return depths.get(at, 0)


def saved(
    code: Sequence[Insn], at: int, pushed: Callable[[Insn], int], saves: Callable[[Insn], str]
) -> Mapping[str, int]:
    """Return the registers that are on the stack at `at`, and how far above the stack pointer each is.

    What was saved first counts: later it may hold something else. saves: the register that one pushes, or "".
    """
    if not code:
        return {}
    by_address = {insn.address: insn for insn in code}
    states: dict[int, tuple[int, tuple[tuple[int, str], ...]]] = {code[0].address: (0, ())}
    waiting = [code[0].address]
    while waiting and at not in states:
        if (insn := by_address.get(waiting.pop())) is None:
            continue
        below, held = states[insn.address]
        now = below + pushed(insn)
        left = tuple(one for one in held if one[0] <= now)
        left = (*left, (now, name)) if (name := saves(insn)) else left
        for follower in _next(insn):
            if follower not in states:
                states[follower] = now, left
                waiting.append(follower)
    below, held = states.get(at, (0, ()))
    return {name: below - place for place, name in reversed(held)}


def _next(insn: Insn) -> tuple[int, ...]:
    after = (insn.end,) if insn.falls_through else ()
    jumps = insn.flow in (Flow.JUMP, Flow.BRANCH) and insn.target is not None
    return (*after, insn.target) if jumps and insn.target is not None else after
