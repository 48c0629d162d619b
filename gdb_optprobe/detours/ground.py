"""One function as the ground branches stand on: its stretches, the straight runs that can be displaced together.

    ┌──────┬──────┬──────┐ ┌──────┬──────┐ ┌──────┐
    │ insn │ insn │ call │ │ insn │ jne  │ │ ud2  │
    └──────┴──────┴──────┘ └──────┴──────┘ └──────┘
     a stretch             a stretch        an obstacle: nothing displaces it
                         ▲ ▲
                         │ └ a jump lands here
                         └ a return lands here

Between two instructions of a stretch is no seam: whoever runs the second has just run the first, so a program for the
second may run in the detour of a branch at the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from gdb_optprobe.detours import obstacles
from gdb_optprobe.detours.refusal import Reason, Refusal, Spelled
from gdb_optprobe.guest.text import Fact, FtraceSite, Function, Jump, Mark, Text
from gdb_optprobe.isa.base import LONGEST, Flow, Insn, Isa

FIRST_BYTES = 5
"""A function's tracer's site begins within these: nothing but a landing pad stands before it."""


# Behind these is nothing that they lead to. A trap may be one of the guest's own, which goes on behind it.
_ENDS = (Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RETURN)

_GOES_ON = (Flow.NEXT, Flow.BRANCH)
_RUNS_ON = (Flow.NEXT, Flow.BRANCH, Flow.CALL, Flow.INDIRECT_CALL)  # a call, when it has returned
_PLAIN = (Flow.NEXT, Flow.BRANCH, Flow.CALL, Flow.RETURN)
_KPROBES = (Fact.KPROBE, Fact.KPROBE_BREAKPOINT, Fact.KPROBE_JUMP)
_BY_ADDRESS = (Fact.EXCEPTION, Fact.RESTART)  # what is not there is not known, and nothing is rewritten


class Ground:
    """`function` of `text`; good until the guest runs."""

    def __init__(self, function: Function, isa: Isa, text: Text) -> None:
        self.function = function
        self.isa = isa
        self.text = text
        self._stretches: dict[int, tuple[Insn, ...]] = {}
        self._obstacles: dict[int, Reason | None] = {}
        self._traced: dict[int, bool] = {}

    def stretch(self, insn: Insn) -> tuple[Insn, ...]:
        """The instructions that can be displaced together with `insn`, itself among them."""
        if insn.address not in self._stretches:
            found = self._stretch(insn)
            self._stretches.update((one.address, found) for one in found)
        return self._stretches[insn.address]

    def _stretch(self, insn: Insn) -> tuple[Insn, ...]:
        if self.obstacle(insn) is not None:
            return (insn,)
        first = last = insn
        found = [insn]
        while (before := self.before(first)) is not None and self.seam(before, first) is None:
            found.insert(0, before)
            first = before
        while (after := self.function.own.get(last.end)) is not None and self.seam(last, after) is None:
            found.append(after)
            last = after
        return tuple(found)

    def around(self, address: int) -> Insn | None:
        """The instruction that `address` is in; None where none was decoded."""
        places = range(address, address - LONGEST, -1)
        found = next((insn for at in places if (insn := self.function.own.get(at)) is not None), None)
        return found if found is not None and address < found.end else None

    def before(self, insn: Insn) -> Insn | None:
        """The instruction that ends where `insn` begins."""
        return self._ends.get(insn.address)

    def is_shadowed(self, insn: Insn) -> bool:
        """In `sti; hlt` an interrupt can come only once `hlt` waits for it: nothing may run between the two."""
        before = self.before(insn)
        return before is not None and self.isa.shadows(before)

    def site(self, insn: Insn) -> FtraceSite | None:
        """The tracer's site at `insn`."""
        return self._sites.get(insn.address)

    def is_traced(self, function: int) -> bool:
        """Whether the function that starts at `function`, this one or another, begins with a tracer's site."""
        if function not in self._traced:
            self._traced[function] = bool(self.text.ftrace_sites(function, function + FIRST_BYTES))
        return self._traced[function]

    # why not -----------------------------------------------------------------------------------------------------

    def obstacle(self, insn: Insn) -> Reason | None:
        """Why nothing may displace `insn`; None where something may."""
        if insn.address not in self._obstacles:
            self._obstacles[insn.address] = self._obstacle(insn)
        return self._obstacles[insn.address]

    def seam(self, before: Insn, insn: Insn | None) -> Reason | None:
        """Why no branch may displace both `before` and what follows it, `insn`; None where one may."""
        if insn is None or not before.falls_through:
            return Refusal.FUNCTION_END.because(function=self.function.name)
        if before.flow in (Flow.CALL, Flow.INDIRECT_CALL):
            source, target = self._spell(before.address), self._spell(before.end)
            return Refusal.RETURN_INTO_REGION.because(source=source, target=target)
        if (site := self.site(before) or self.site(insn)) is not None:
            return Refusal.FTRACE_SITE.because(site=self._spell(site.address))
        if self._opaque is not None:
            return self._opaque
        jump = self.landings.get(insn.address)
        if jump is not None:
            return self._landed(jump)
        return self.obstacle(insn) or self.obstacle(before)

    def is_seamless(self, before: Insn, insn: Insn) -> bool:
        """Whether it is plain that `seam` finds nothing: for sweeps, which ask of millions; others ask `seam`."""
        plain = self.plain
        return (
            insn.address in plain
            and before.address in plain
            and insn.address not in self.landings
            and before.flow in _GOES_ON
            and self._opaque is None
        )

    @cached_property
    def plain(self) -> frozenset[int]:
        """Instructions of which nobody says anything, and which say nothing themselves: no obstacles, all free."""
        noted = self._marked.keys() | self._shared.keys() | self._landed_inside.keys()
        isa = self.isa
        return frozenset(
            insn.address
            for insn in self.function.hot
            if insn.address not in noted
            and insn.flow in _PLAIN
            and obstacles.is_free(insn, isa)
            and not isa.shadows(insn)
            and not obstacles.is_landing_pad(insn)
        )

    def why_not_alone(self, insn: Insn) -> Reason | None:
        """Why no copy of `insn` alone may stand for it; None where one may."""
        mark = self._marked.get(insn.address)
        if mark is not None:
            return obstacles.marked(mark, insn, self.text)
        return obstacles.unmovable(insn, self.isa, self.text) or self._immobile(insn)

    def rewritten_by_guest(self, insn: Insn) -> Reason | None:
        """Whether the guest compares and rewrites `insn`, or knows it as a trap of its own."""
        mark = self._marked.get(insn.address)
        return obstacles.marked(mark, insn, self.text) if mark is not None and mark.fact not in _BY_ADDRESS else None

    def unreached(self, insn: Insn) -> Reason | None:
        """Why nothing is known to run `insn` where it is; None where something may.

        The guest's own kprobe runs what its jump covers, but for the first, in code of its own; and what stands behind
        a patch that nothing explains may be no instruction at all.
        """
        foreign = self.function.foreign
        if foreign is not None and insn.address > foreign.address:
            why = f": {foreign.why}" if foreign.why else ""
            return Refusal.FOREIGN_PATCH.because(address=self._spell(foreign.address), why=why)
        mark = self._marked.get(insn.address)
        if mark is None or mark.fact not in _KPROBES:
            return None
        if mark.address == insn.address and mark.fact is not Fact.KPROBE_BREAKPOINT:
            return None
        return obstacles.marked(mark, insn, self.text)

    def _obstacle(self, insn: Insn) -> Reason | None:
        sites = self._shared.get(insn.address)
        if sites is not None and insn.address not in self._marked:
            # The tracer writes these bytes itself: nobody jumps among them.
            return obstacles.traced(insn, sites, self.text)
        jump = self._landed_inside.get(insn.address)
        return self.why_not_alone(insn) or (self._landed(jump) if jump is not None else None)

    def _immobile(self, insn: Insn) -> Reason | None:
        if obstacles.is_free(insn, self.isa):
            return None
        after = self.function.own.get(insn.end) if self.isa.shadows(insn) else None
        found = obstacles.stuck((insn, after) if after is not None else (insn,), self.isa, self.text)
        return found[1] if found is not None else None

    def _landed(self, jump: Jump) -> Reason:
        source, target = self._spell(jump.source), self._spell(jump.target)
        return Refusal.JUMP_INTO_REGION.because(kind=jump.kind, source=source, target=target)

    def _spell(self, address: int) -> Spelled:
        return Spelled(self.text.spell, address)

    # what is known of the whole function ---------------------------------------------------------------------------

    @cached_property
    def landings(self) -> Mapping[int, Jump]:
        """Where jumps land in this part of the function, but at its start."""
        start, end = self.function.start, self.function.end
        return {jump.target: jump for jump in self.function.whole.jumps if start < jump.target < end}

    @cached_property
    def _ends(self) -> Mapping[int, Insn]:
        return {insn.end: insn for insn in self.function.own.values()}

    @cached_property
    def bases(self) -> Mapping[int, int]:
        """By instruction: what the register holds that counters are named by, where that is known."""
        return self.isa.bases(self.function.start, self.function.own)

    @cached_property
    def _landed_inside(self) -> Mapping[int, Jump]:
        """By instruction: a jump that lands in its middle, or in the one before: what runs then may reach into both.

        A kernel with FineIBT has `jne` lead to the last byte of the instruction before, where with itself it is a trap.
        """
        astray = (jump for target, jump in self.landings.items() if target not in self.function.own)
        found: dict[int, Jump] = {}
        for jump in astray:
            if (insn := self.around(jump.target)) is not None:
                found |= {at: jump for at in (insn.address, insn.end) if at in self.function.own}
        return found

    @cached_property
    def _marked(self) -> Mapping[int, Mark]:
        """By instruction: a mark on one of its bytes."""
        # What the guest's own kprobe writes says more than what else is known of the same bytes.
        marks = sorted(self.marks.values(), key=lambda mark: mark.fact in _KPROBES)
        places = ((at, mark) for mark in marks for at in range(mark.address, mark.address + mark.size))
        found = ((self.around(at), mark) for at, mark in places)
        return {insn.address: mark for insn, mark in found if insn is not None}

    @cached_property
    def _shared(self) -> Mapping[int, Sequence[FtraceSite]]:
        """By instruction: tracer's sites that share bytes with it."""
        found: dict[int, list[FtraceSite]] = {}
        for site in self._sites.values():
            for at in range(site.address, site.end):
                insn = self.around(at)
                if insn is not None and site not in found.setdefault(insn.address, []):
                    found[insn.address].append(site)
        return found

    @cached_property
    def marks(self) -> Mapping[int, Mark]:
        found = self.text.marks(self.function.start, self.function.end)
        return {mark.address: mark for mark in sorted(found, key=lambda mark: mark.fact in _KPROBES)}

    @cached_property
    def _sites(self) -> Mapping[int, FtraceSite]:
        return {site.address: site for site in self.text.ftrace_sites(self.function.start, self.function.end)}

    @cached_property
    def _opaque(self) -> Reason | None:
        """Why jumps may land anywhere in this function."""
        whole, spell = self.function.whole, self._spell
        if not whole.complete:
            if (foreign := self.function.foreign) is not None:
                why = Refusal.FOREIGN_JUMP if foreign.is_jump else Refusal.FOREIGN_BREAKPOINT
                return why.because(address=spell(foreign.address))
            breaks = next((insn for insn in self.function.hot if self._breaks_in(insn)), None)
            if breaks is not None:
                return Refusal.FOREIGN_BREAKPOINT.because(address=spell(breaks.address))
            patch = next((insn for insn in whole.code.values() if obstacles.is_patch(insn, self.text)), None)
            if patch is not None:
                return Refusal.FOREIGN_JUMP.because(address=spell(patch.address))
            if whole.missing:
                return Refusal.LANDINGS_UNKNOWN.because(
                    function=self.function.name, missing=whole.missing, needed=self.isa.branch_size
                )
            return Refusal.UNDECODABLE.because(address=spell(self.function.start))
        if whole.blind_jumps:
            return Refusal.INDIRECT_JUMP.because(source=spell(whole.blind_jumps[0]), needed=self.isa.branch_size)
        return None

    def _breaks_in(self, insn: Insn) -> bool:
        """Whether `insn` is a breakpoint that code runs into: somebody's, with unknown bytes beneath."""
        before = self.before(insn)
        return insn.data == self.isa.breakpoint and before is not None and before.flow in _RUNS_ON

    # padding -------------------------------------------------------------------------------------------------------

    def padding(self, last: Insn, needed: int, stops: frozenset[int] = frozenset()) -> bytes:
        """The padding behind `last`, as far as `needed` bytes or the first breakpoint of `stops` in it."""
        found = b""
        while len(found) < needed and self._is_padding(at := last.end + len(found)) and at not in stops:
            found += self.function.own[at].data
        return found[:needed]

    def padded(self, insn: Insn) -> Insn:
        """The instruction behind which the padding `insn` stands; itself where it is none."""
        while self._is_padding(insn.address) and (before := self.before(insn)) is not None:
            insn = before
        return insn

    def is_padding(self, insn: Insn) -> bool:
        """Whether nobody ever comes to `insn`: it fills the gap behind an instruction that never falls through."""
        return self._is_padding(insn.address)

    def _is_padding(self, address: int) -> bool:
        # All that leads into the function is asked for only where something looks like a gap.
        return address in self._gaps and address in self._padding

    @cached_property
    def _gaps(self) -> frozenset[int]:
        """What looks like padding by the instructions alone."""
        # In an assembler's function what looks like a gap may be a target that nobody knows.
        if not self.function.compiled:
            return frozenset()
        found: set[int] = set()
        before: Insn | None = None
        for insn in self.function.hot:
            if self._follows(before, found) and self.isa.fills(insn):
                found.add(insn.address)
            before = insn
        return frozenset(found)

    @cached_property
    def _padding(self) -> frozenset[int]:
        if self._opaque is not None:
            return frozenset()
        found: set[int] = set()
        for at in sorted(self._gaps):
            if self._follows(self._ends.get(at), found) and not (at in self.landings or at in self._marked):
                found.add(at)
        return frozenset(found)

    def _follows(self, before: Insn | None, padding: set[int]) -> bool:
        """Whether what stands behind `before` is padding if it looks so."""
        if before is None:
            return False
        # A jump that the guest rewrites may be a nop at another time.
        ends = before.flow in _ENDS and before.address not in self._marked
        return ends or before.address in padding


class Grounds:
    """The grounds of the functions looked at since the guest stopped."""

    def __init__(self, isa: Isa, text: Text) -> None:
        self.isa = isa
        self.text = text
        self._known: dict[int, Ground] = {}

    def at(self, address: int) -> Ground | None:
        """The ground around `address`; None where no symbol says that there is a function."""
        function = self.text.function(address)
        if function is None:
            return None
        ground = self._known.get(function.start)
        # Text decodes a function anew once the guest has run; then what was found out about it is old too.
        if ground is None or ground.function is not function:
            ground = self._known[function.start] = Ground(function, self.isa, self.text)
        return ground
