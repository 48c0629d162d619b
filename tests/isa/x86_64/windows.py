"""Windows of a kernel's real text, moved to all kinds of places and judged: what the survey takes, and what it found.

minimal   as few instructions as hold the branch
long      a region of up to 30 bytes and 8 instructions
counted   a long region with counters on several of its instructions, which spoil what is dead there
entered   the same, where a branch of the region leads into the region
relative  the same, where an operand is relative to RIP

filler    between parts of the text, where the detours are
below     almost 2 GiB below: operands are out of relative reach there and named absolutely
above     almost 2 GiB above, or as far as there are addresses
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from gdb_optprobe.isa.base import Insn, Relocated, Unrelocatable
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.decoder import shape
from tests.isa.x86_64.differential import PAGE, Probed, Unfit, compare, is_fit, random_state, second_opinion

KINDS = {"minimal": 4, "long": 2, "counted": 4, "entered": 2, "relative": 2}  # with how often each is tried
COUNTED = ("counted", "entered", "relative")
MOST_BYTES, MOST = 30, 8
FAR = (1 << 31) - (1 << 24)  # the rest of the text, which branches go to, must be in reach too
TOP = (1 << 64) - (1 << 20)
LARGEST = 1 << 14
FILLER = 1 << 16
TRIES = 40


@dataclass(frozen=True)
class KernelCode:
    """The bytes of a kernel's text from `base`, and where its functions begin, ascending."""

    base: int
    data: bytes
    starts: Sequence[int]

    def functions(self) -> Iterator[tuple[int, int]]:
        """Start and end of each; the padding behind it is in it."""
        return pairwise((*self.starts, self.base + len(self.data)))

    def function_at(self, address: int) -> tuple[int, int]:
        number = bisect_right(self.starts, address)
        return self.starts[number - 1], (*self.starts[number : number + 1], self.base + len(self.data))[0]

    def decode(self, start: int, end: int) -> list[Insn]:
        return X86_64.decode(self.data[start - self.base : end - self.base], start)

    def filler(self) -> tuple[int, int]:
        """The longest part of it that is nothing but int3, roughly."""
        pages = [self.data[at : at + PAGE] == b"\xcc" * PAGE for at in range(0, len(self.data), PAGE)]
        runs = [0]
        for free in pages:
            runs.append(runs[-1] + 1 if free else 0)
        end = max(range(len(runs)), key=runs.__getitem__)
        return self.base + (end - runs[end]) * PAGE, self.base + end * PAGE


@dataclass
class Survey:
    """What was found. Windows that Unicorn cannot run are moved and decoded, and not in `executed`.

    counters: in the copies that were run; spoiled: those of them where something is dead.
    absolute: windows with an operand relative to RIP that the copy names absolutely.
    """

    windows: Counter[str] = field(default_factory=Counter)
    executed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    counters: int = 0
    spoiled: int = 0
    absolute: int = 0
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        def listed(counted: Counter[str]) -> str:
            return ", ".join(f"{name} {count:,}" for name, count in sorted(counted.items()))

        return (
            f"{self.windows.total():,} windows ({listed(self.windows)}); refused {listed(self.refused)}; "
            f"run {self.executed.total():,} ({listed(self.executed)}), with {self.counters:,} counters, "
            f"{self.spoiled:,} of them where something is dead, {self.absolute:,} with an operand named absolutely; "
            f"{len(self.differences)} differences"
        )


def survey(code: KernelCode, windows: int, seed: int) -> Survey:
    """Move and run windows of `code` until `windows` of them have been run.

    Reproducible: the windows and states depend on `seed` alone.
    """
    rng = random.Random(seed)
    found = Survey()
    filler = code.filler()
    while found.executed.total() < windows:
        start, end = code.function_at(code.base + rng.randrange(len(code.data)))
        if end - start > LARGEST:
            continue
        insns = code.decode(start, end)
        function = {insn.address: insn for insn in insns}
        for kind in rng.choices(list(KINDS), list(KINDS.values()), k=4):
            window = _window(insns, kind, rng)
            if window:
                _one(kind, window, function, filler, rng, found)
    return found


def _window(insns: list[Insn], kind: str, rng: random.Random) -> list[Insn]:
    """One of a function's, into which nothing from outside it leads; empty where none of the kind was found."""
    anchors = [number for number, insn in enumerate(insns) if insn.data != b"\xcc" and _is_anchor(insn, kind)]
    for _ in range(TRIES if anchors else 0):
        size, most = (5, MOST) if kind == "minimal" else (rng.randrange(5, MOST_BYTES + 1), rng.randint(2, MOST))
        first = max(0, rng.choice(anchors) - (rng.randrange(most) if kind in ("entered", "relative") else 0))
        window: list[Insn] = []
        for insn in insns[first : first + most]:
            full = sum(other.size for other in window)
            if (kind == "minimal" and full >= size) or (kind != "minimal" and full + insn.size > size):
                break
            window.append(insn)
        outside = (*insns[:first], *insns[first + len(window) :])
        long_enough = sum(insn.size for insn in window) >= X86_64.branch_size
        if long_enough and _fits(window, kind) and not _leads_into(window, outside):
            return window
    return []


def _is_anchor(insn: Insn, kind: str) -> bool:
    """Whether a window of the kind must have such an instruction."""
    if kind == "entered":
        return insn.target is not None and -MOST_BYTES < insn.target - insn.address < MOST_BYTES
    return kind != "relative" or shape(insn.data).is_rip_relative


def _fits(window: Sequence[Insn], kind: str) -> bool:
    if kind == "entered":
        return _leads_into(window, window)
    return any(_is_anchor(insn, kind) for insn in window)


def _leads_into(window: Sequence[Insn], insns: Sequence[Insn]) -> bool:
    start, end = window[0].address, window[-1].end
    return any(insn.target is not None and start < insn.target < end for insn in insns)


def _one(
    kind: str,
    window: list[Insn],
    function: dict[int, Insn],
    filler: tuple[int, int],
    rng: random.Random,
    found: Survey,
) -> None:
    start = window[0].address
    place, to = rng.choice(
        (
            ("filler", rng.randrange(filler[0], filler[1] - FILLER)),
            ("below", start - FAR + rng.randrange(PAGE)),
            ("above", min(start + FAR, TOP) - rng.randrange(PAGE)),
        )
    )
    counters = {}
    if kind in COUNTED:
        data = (to & -PAGE) + 8 * PAGE
        chosen = rng.sample(window, min(len(window), rng.randint(2, MOST)))
        counters = {insn.address: data + 8 * number for number, insn in enumerate(chosen)}
    probed = Probed(function, counters)
    before = probed.before()
    found.windows[kind] += 1
    try:
        copy = X86_64.relocate(window, to, before)
    except Unrelocatable as refusal:
        found.refused[refusal.hazard.name] += 1
        return
    where = f"{kind} {start:#x} {b''.join(insn.data for insn in window).hex()} to {to:#x} ({place})"
    found.differences += [f"{where}: iced-x86 {disagreement}" for disagreement in second_opinion(window, copy)]
    if not all(is_fit(insn) for insn in window):
        return
    state = random_state(rng)
    try:
        difference = compare(window, copy, state, probed)
    except Unfit:
        return
    found.executed[f"{kind} {place}"] += 1
    found.counters += len(counters)
    found.spoiled += sum(bool(dead.flags or dead.registers) for dead in map(probed.dead, counters))
    found.absolute += _names_absolutely(window, copy)
    if difference:
        found.differences.append(f"{where}: {difference}")


def _names_absolutely(window: Sequence[Insn], copy: Relocated) -> bool:
    """Whether an operand that was relative to RIP is a displacement alone in the copy."""
    offsets = [offset for offset, _ in copy.origins]
    for insn, (offset, after) in zip(window, pairwise((*offsets, len(copy.data))), strict=False):
        moved = X86_64.decode(copy.data[offset:after], copy.address + offset)
        if shape(insn.data).is_rip_relative and moved and not shape(moved[-1].data).is_rip_relative:
            return True
    return False
