"""The control-flow graph of one function, cut into straight-line runs: instructions that can be displaced together.

    ┌──────┬──────┬──────┐ ┌──────┬──────┐ ┌──────┐
    │ insn │ insn │ call │ │ insn │ jne  │ │ ud2  │
    └──────┴──────┴──────┘ └──────┴──────┘ └──────┘
     a run                 a run            an obstacle: nothing displaces it
                         ▲ ▲
                         │ └ a jump lands here
                         └ a return lands here

A run is part of a basic block. Between two of its instructions is no boundary: execution that reaches the second has
just run the first, so a program for the second may run in the detour of a branch at the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from gdb_optprobe.detours import obstacles
from gdb_optprobe.detours.refusal import Reason, Refusal, Spelled
from gdb_optprobe.guest.text import KPROBES, PROBED, Area, Fact, FtraceSite, Function, Jump, Mark, Text
from gdb_optprobe.isa.base import LONGEST, Flow, Insn
from gdb_optprobe.isa.record import Isa

FIRST_BYTES = 5
"""A function's ftrace site begins within these: only a landing pad may be before it."""


# Execution never continues behind these. Behind a trap it may: the trap may be one of the guest's own.
_NEVER_FALLS_THROUGH = (Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RETURN)

_CALLS = (Flow.CALL, Flow.INDIRECT_CALL)
_MAY_FALL_THROUGH = (Flow.NEXT, Flow.BRANCH)
_RUNS_ON = (Flow.NEXT, Flow.BRANCH, Flow.CALL, Flow.INDIRECT_CALL)  # a call, when it has returned
_PLAIN = (Flow.NEXT, Flow.BRANCH, Flow.CALL, Flow.RETURN)
_STAY = (Fact.JUMP_LABEL, Fact.STATIC_CALL, Fact.EXCEPTION, Fact.BUG, Fact.LOCK_PREFIX)
"""Why an instruction must stay at its address, which says nothing of what runs before it."""
_KNOWN_BY_ADDRESS = (Fact.EXCEPTION, Fact.RESTART)  # the guest looks them up by their address and rewrites nothing


class Cfg:
    """The graph of `function` in `text`; it expires when the guest runs."""

    def __init__(self, function: Function, isa: Isa, text: Text) -> None:
        self.function = function
        self.isa = isa
        self.text = text
        self._runs: dict[int, tuple[Insn, ...]] = {}
        self._by_end = {insn.end: insn for insn in function.own.values()}
        self._obstacles: dict[int, Reason | None] = {}
        self._traced: dict[int, bool] = {}
        self._ways: dict[int, Insn | None] = {}

    def straight_line_run(self, insn: Insn) -> tuple[Insn, ...]:
        """Return the instructions that can be displaced together with `insn`, itself among them."""
        if (known := self._runs.get(insn.address)) is not None:
            return known
        run = [insn]
        if self.obstacle(insn) is None:
            while (before := self.before(run[0])) is not None and self.boundary(before, run[0]) is None:
                run.insert(0, before)
            while (after := self.function.own.get(run[-1].end)) is not None and self.boundary(run[-1], after) is None:
                run.append(after)
        found = tuple(run)
        self._runs.update((one.address, found) for one in found)
        return found

    def way_to(self, insn: Insn) -> Insn | None:
        """Return the only instruction that execution comes to `insn` from, if `insn` must stay where it is and a branch
        may displace that one; None if not.

        It is the one before, or a jump. A program for `insn` may run behind its copy, where that leads to `insn`.
        """
        if not self.must_stay(insn.address):
            return None
        if insn.address not in self._ways:
            self._ways[insn.address] = self._way_to(insn)
        return self._ways[insn.address]

    def _way_to(self, insn: Insn) -> Insn | None:
        before = self.before(insn)
        if before is None:
            return None  # calls come to where a function begins
        falls = before.falls_through
        if not falls and (before.flow not in _NEVER_FALLS_THROUGH or before.address in self._marked):
            return None  # the guest may continue behind its own trap, and behind a jump that it rewrites
        way = before if falls else self._jumps_to.get(insn.address)
        if way is None or self.obstacle(way) is not None or self.text.area(way.address) not in PROBED:
            return None
        if way.flow in _CALLS:
            return None  # it returns there
        if insn.address in self.ftrace_sites or way.address in self.ftrace_sites:
            return None
        landings = self._landings
        if landings is None or any(at in landings for one in (insn, way) for at in range(one.address + 1, one.end)):
            return None
        return way if landings[insn.address] == (0 if falls else 1) else None

    def load_before(self, insn: Insn) -> Insn | None:
        """Return the load after which `insn` is before its store, if `insn` runs exactly as often; None if not.

        Nothing else leads to it, nor between the two, and each instruction from the load on leads to the next alone.
        """
        landings = self._landings
        while self.text.area(insn.address) is Area.RESERVATION:
            before = self.before(insn)
            if before is None or before.flow is not Flow.NEXT or before.address in self._marked:
                return None
            if landings is None or any(at in landings for at in range(insn.address, insn.end)):
                return None
            insn = before
        return insn if self.text.area(insn.address) in PROBED else None

    def must_stay(self, address: int) -> bool:
        """Return whether the guest's tables say that the instruction at `address` must stay there, and no more."""
        mark = self._marked.get(address)
        return mark is not None and mark.fact in _STAY

    def stays_at(self, insn: Insn) -> Iterator[int]:
        """Yield the addresses that `insn` leads to at which an instruction must stay."""
        if insn.falls_through and self.must_stay(insn.end):
            yield insn.end
        if insn.target is not None and insn.target != insn.end and self.must_stay(insn.target):
            yield insn.target

    def served_together(self, insn: Insn) -> frozenset[int]:
        """Return the addresses that one branch may serve, or two next to each other: of a straight-line run, and of
        what must stay where that leads to.
        """
        run = self.straight_line_run(self.way_to(insn) or insn)
        return frozenset([*(one.address for one in run), *(at for one in run for at in self.stays_at(one))])

    def containing(self, address: int) -> Insn | None:
        """Return the instruction that covers `address`; None if none was decoded there."""
        places = range(address, address - LONGEST, -1)
        found = next((insn for at in places if (insn := self.function.own.get(at)) is not None), None)
        return found if found is not None and address < found.end else None

    def before(self, insn: Insn) -> Insn | None:
        """Return the instruction that ends where `insn` begins."""
        return self._by_end.get(insn.address)

    def following(self, insn: Insn) -> Iterator[Insn]:
        """Yield the instructions behind `insn`, one after another, those of the next functions too."""
        function: Function | None = self.function
        while True:
            if function is None or (after := function.own.get(insn.end)) is None:
                function = self.text.function(insn.end)
                if function is None or (after := function.own.get(insn.end)) is None:
                    return
            yield after
            insn = after

    def is_shadowed(self, insn: Insn) -> bool:
        """Return whether nothing may run before `insn`: in `sti; hlt` an interrupt can come only while `hlt` waits."""
        before = self.before(insn)
        return before is not None and self.isa.shadows(before)

    def is_traced(self, function: int) -> bool:
        """Return whether callers of the function that starts at `function`, this one or another, rely on the ABI alone:
        it begins with an ftrace site, say.
        """
        if function not in self._traced:
            by_abi = function == self.function.start and self.function.by_abi
            self._traced[function] = by_abi or bool(self.text.ftrace_sites(function, function + FIRST_BYTES))
        return self._traced[function]

    # why not -----------------------------------------------------------------------------------------------------

    def obstacle(self, insn: Insn) -> Reason | None:
        """Return why nothing may displace `insn`; None if a branch may."""
        if insn.address not in self._obstacles:
            sites = self._shared.get(insn.address)
            if sites is not None and insn.address not in self._marked:
                # ftrace writes these bytes itself: no jump leads among them.
                found = obstacles.traced(insn, sites, self.text)
            else:
                jump = self._jumps_inside.get(insn.address)
                found = self.why_not_copied(insn) or (self._jump_refusal(jump) if jump is not None else None)
            self._obstacles[insn.address] = found
        return self._obstacles[insn.address]

    def boundary(self, before: Insn, insn: Insn | None) -> Reason | None:
        """Return why no branch may displace both `before` and what follows it, `insn`; None if one may."""
        if insn is None or not before.falls_through:
            return Refusal.FUNCTION_END.because(function=self.function.name)
        if before.flow in _CALLS:
            source, target = self._spell(before.address), self._spell(before.end)
            return Refusal.RETURN_INTO_REGION.because(source=source, target=target)
        if (site := self.ftrace_sites.get(before.address) or self.ftrace_sites.get(insn.address)) is not None:
            return Refusal.FTRACE_SITE.because(site=self._spell(site.address))
        if self._unknown_jumps is not None:
            return self._unknown_jumps
        jump = self.jump_targets.get(insn.address)
        if jump is not None:
            return self._jump_refusal(jump)
        return self.obstacle(insn) or self.obstacle(before)

    def has_no_boundary(self, before: Insn, insn: Insn) -> bool:
        """Return whether `boundary` certainly returns None: a fast answer for sweeps, which ask of millions."""
        plain = self.plain
        return (
            insn.address in plain
            and before.address in plain
            and insn.address not in self.jump_targets
            and before.flow in _MAY_FALL_THROUGH
            and self._unknown_jumps is None
        )

    @cached_property
    def plain(self) -> frozenset[int]:
        """Return the instructions with no mark, no site and no hazard: none is an obstacle, all can be moved freely."""
        noted = self._marked.keys() | self._shared.keys() | self._jumps_inside.keys()
        isa = self.isa
        return frozenset(
            insn.address
            for insn in self.function.hot
            if insn.address not in noted
            and insn.flow in _PLAIN
            and obstacles.is_free(insn, isa)
            and not isa.shadows(insn)
            and not isa.is_landing_pad(insn)
        )

    def why_not_copied(self, insn: Insn) -> Reason | None:
        """Return why no copy of `insn` alone may run in its place; None if one may."""
        mark = self._marked.get(insn.address)
        if mark is not None:
            return obstacles.marked(mark, insn, self.text)
        if (reason := obstacles.unmovable(insn, self.isa, self.text)) is not None:
            return reason
        if obstacles.is_free(insn, self.isa):
            return None
        after = self.function.own.get(insn.end) if self.isa.shadows(insn) else None
        found = obstacles.stuck((insn, after) if after is not None else (insn,), self.isa, self.text)
        return found[1] if found is not None else None

    def why_not_emulated(self, insn: Insn) -> Reason | None:
        """Return why `insn` may not be emulated: the guest compares and rewrites it, or knows it as its own trap."""
        mark = self._marked.get(insn.address)
        if mark is None or mark.fact in _KNOWN_BY_ADDRESS:
            return None
        return obstacles.marked(mark, insn, self.text)

    def unreached(self, insn: Insn) -> Reason | None:
        """Return why `insn` may never run where it is; None if it does.

        The guest's own kprobe runs what its jump covers, except the first, in code of its own. Bytes behind a patch of
        unknown origin may not be an instruction.
        """
        foreign = self.function.foreign
        if foreign is not None and insn.address > foreign.address:
            why = f": {foreign.why}" if foreign.why else ""
            return Refusal.FOREIGN_PATCH.because(address=self._spell(foreign.address), why=why)
        mark = self._marked.get(insn.address)
        if mark is None or mark.fact not in KPROBES:
            return None
        if mark.address == insn.address and mark.fact is not Fact.KPROBE_BREAKPOINT:
            return None
        return obstacles.marked(mark, insn, self.text)

    def _jump_refusal(self, jump: Jump) -> Reason:
        source, target = self._spell(jump.source), self._spell(jump.target)
        return Refusal.JUMP_INTO_REGION.because(kind=jump.kind, source=source, target=target)

    def _spell(self, address: int) -> Spelled:
        return Spelled(self.text.spell, address)

    # what is known of the whole function ---------------------------------------------------------------------------

    @cached_property
    def jump_targets(self) -> Mapping[int, Jump]:
        """Return the jumps into this part of the function by their targets, without its start."""
        start, end = self.function.start, self.function.end
        return {jump.target: jump for jump in self.function.whole.jumps if start < jump.target < end}

    @cached_property
    def _landings(self) -> Mapping[int, int] | None:
        """Return how many ways lead to an address otherwise than from the instruction before; None where not all are
        known.
        """
        if self.function.entries is not None:
            found = self.function.entries()
            return None if found is None else Counter(found)
        if self._unknown_jumps is not None:
            return None
        return Counter(jump.target for jump in self.function.whole.jumps)

    @cached_property
    def _jumps_to(self) -> Mapping[int, Insn]:
        """Return an instruction that jumps there, and does not call, by its target."""
        jumps = (insn for insn in self.function.own.values() if insn.flow in (Flow.JUMP, Flow.BRANCH))
        return {insn.target: insn for insn in jumps if insn.target is not None}

    @cached_property
    def base_values(self) -> Mapping[int, int]:
        """Return, by instruction, the value of the register that counters are addressed by, where it is known."""
        return self.isa.bases(self.function.start, self.function.own)

    @cached_property
    def _jumps_inside(self) -> Mapping[int, Jump]:
        """Return, by instruction, a jump into its middle or into the one before: what runs then may reach into both.

        A kernel with FineIBT has `jne` lead to the last byte of the instruction before, where with itself it is a trap.
        """
        astray = (jump for target, jump in self.jump_targets.items() if target not in self.function.own)
        found: dict[int, Jump] = {}
        for jump in astray:
            if (insn := self.containing(jump.target)) is not None:
                found |= {at: jump for at in (insn.address, insn.end) if at in self.function.own}
        return found

    @cached_property
    def _marked(self) -> Mapping[int, Mark]:
        """Return, by instruction, a mark on one of its bytes."""
        # What the guest's own kprobe writes says more than what else is known of the same bytes.
        marks = sorted(self.marks.values(), key=lambda mark: mark.fact in KPROBES)
        places = ((at, mark) for mark in marks for at in range(mark.address, mark.address + mark.size))
        found = ((self.containing(at), mark) for at, mark in places)
        return {insn.address: mark for insn, mark in found if insn is not None}

    @cached_property
    def _shared(self) -> Mapping[int, Sequence[FtraceSite]]:
        """Return, by instruction, the ftrace sites that share bytes with it."""
        found: dict[int, list[FtraceSite]] = {}
        for site in self.ftrace_sites.values():
            for at in range(site.address, site.end):
                insn = self.containing(at)
                if insn is not None and site not in found.setdefault(insn.address, []):
                    found[insn.address].append(site)
        return found

    @cached_property
    def marks(self) -> Mapping[int, Mark]:
        """Return the marks on this part of the function by their addresses."""
        found = self.text.marks(self.function.start, self.function.end)
        return {mark.address: mark for mark in sorted(found, key=lambda mark: mark.fact in KPROBES)}

    @cached_property
    def ftrace_sites(self) -> Mapping[int, FtraceSite]:
        """Return the ftrace sites of this part of the function by their addresses."""
        return {site.address: site for site in self.text.ftrace_sites(self.function.start, self.function.end)}

    @cached_property
    def _unknown_jumps(self) -> Reason | None:
        """Return why jumps may lead anywhere in this function; None if all jumps are known."""
        whole, spell = self.function.whole, self._spell
        if not whole.complete:
            if (foreign := self.function.foreign) is not None:
                why = Refusal.FOREIGN_JUMP if foreign.is_jump else Refusal.FOREIGN_BREAKPOINT
                return why.because(address=spell(foreign.address))
            breaks = next((insn for insn in self.function.hot if self._is_foreign_breakpoint(insn)), None)
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

    def _is_foreign_breakpoint(self, insn: Insn) -> bool:
        """Return whether `insn` is a breakpoint that code runs into: a foreign one, with unknown bytes beneath."""
        before = self.before(insn)
        return insn.data == self.isa.breakpoint and before is not None and before.flow in _RUNS_ON

    # padding -------------------------------------------------------------------------------------------------------

    def padding(self, last: Insn, needed: int, stops: frozenset[int] = frozenset()) -> bytes:
        """Return the padding behind `last`, up to `needed` bytes or the first breakpoint of `stops` in it."""
        found = b""
        while len(found) < needed and self.is_padding(at := last.end + len(found)) and at not in stops:
            found += self.function.own[at].data
        return found[:needed]

    def owner_of_padding(self, insn: Insn) -> Insn:
        """Return the instruction that the padding `insn` follows; `insn` itself if it is not padding."""
        while self.is_padding(insn.address) and (before := self.before(insn)) is not None:
            insn = before
        return insn

    def is_padding(self, address: int) -> bool:
        """Return whether the instruction there never runs: it fills the gap behind one that never falls through."""
        # The jumps into the function are looked up only if something looks like a gap.
        return address in self._gaps and address in self._padding

    @cached_property
    def _gaps(self) -> frozenset[int]:
        """Return what looks like padding by the instructions alone."""
        # In a function of an assembler source, what looks like a gap may be an unknown jump target.
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
        if self._unknown_jumps is not None:
            return frozenset()
        found: set[int] = set()
        for at in sorted(self._gaps):
            if self._follows(self._by_end.get(at), found) and not (at in self.jump_targets or at in self._marked):
                found.add(at)
        return frozenset(found)

    def _follows(self, before: Insn | None, padding: set[int]) -> bool:
        """Return whether what follows `before` is padding if it looks like it."""
        if before is None:
            return False
        # A jump that the guest rewrites may be a nop at another time.
        ends = before.flow in _NEVER_FALLS_THROUGH and before.address not in self._marked
        return ends or before.address in padding


class CfgCache:
    """The graphs of the functions looked at since the guest stopped."""

    def __init__(self, isa: Isa, text: Text) -> None:
        self.isa = isa
        self.text = text
        self._known: dict[int, Cfg] = {}

    def at(self, address: int) -> Cfg | None:
        """Return the graph of the function at `address`; None if no symbol says that there is one."""
        function = self.text.function(address)
        if function is None:
            return None
        cfg = self._known.get(function.start)
        # Text decodes a function again once the guest has run; then its graph is out of date too.
        if cfg is None or cfg.function is not function:
            cfg = self._known[function.start] = Cfg(function, self.isa, self.text)
        return cfg
