"""What a probe does at a hit, compiled for its address, and where that leaves a trace in guest memory.

    a plain count   │ hits │                                                                 and one that is bare
    others          │ hits │ faults │ words of each cell │ table │ table │ ring │ END │
    of a glob       │ hits │ faults │ words of each cell │ lost of each table │ ring │ END │      shared_maps.py
                    └──────── head, read by every list ──────┘└──── by report ────┘
Where it ends is seen by a session that finds it left by an earlier one, by the instruction alone: END is never 0.
A hit is one where the condition holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol, TypeVar

from gdb_optprobe.detours.stop_pad import StopPad
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import Reads
from gdb_optprobe.handlers import interpreter
from gdb_optprobe.handlers.interpreter import Outcome
from gdb_optprobe.handlers.ir import (
    WORD,
    Action,
    And,
    Cell,
    Column,
    Constant,
    Emit,
    Expr,
    HashMap,
    Operand,
    PerCpuBase,
    Program,
    Put,
    Records,
    Statement,
    Stop,
    Update,
    dereferences,
    may_fault,
    nodes,
    operands,
)
from gdb_optprobe.handlers.lower_expressions import UNMAPPED, NotLowered
from gdb_optprobe.handlers.lower_program import LoweringContext, lower
from gdb_optprobe.handlers.lower_routine import with_index
from gdb_optprobe.handlers.return_scope import SAVE, EntryProgram
from gdb_optprobe.handlers.scope import UNREAD, Missing
from gdb_optprobe.handlers.source import Fragment, fault
from gdb_optprobe.isa.base import Code, Dead
from gdb_optprobe.isa.codegen import OuterSaves, ProbeReadRoutines
from gdb_optprobe.isa.record import Isa, counting
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import Count
from gdb_optprobe.maps.hash_map import HashMapLayout
from gdb_optprobe.maps.ring import RingLayout
from gdb_optprobe.probes.session_maps import SessionMaps
from gdb_optprobe.probes.shared_maps import SharedMaps
from gdb_optprobe.probes.shared_records import SharedRecords
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.stops import Hit

HITS = Cell("hits", Count())
Kind = TypeVar("Kind", Action, Statement)
_NOTHING_DEAD = Dead()
_NOTHING_KEPT = OuterSaves()
END = (1).to_bytes(WORD, "little")
_BEFORE_CELLS = 2


class CodeSite(Protocol):
    """address: the probed one. base: see Isa.count."""

    @property
    def address(self) -> int: ...

    @property
    def base(self) -> int | None: ...


@dataclass(frozen=True)
class Handler:
    """program: counts the hit first; a `count` of the user's own is that. per_cpu: see isa.codegen.EntryState.

    cpu:        this CPU's number, where records can tell it.
    unmapped:   how memory that may not be there is read.
    entry:      of a return probe, what it does where the function is entered.
    table_bits: of each table, see HashMapLayout. ring_bits: of the ring, see RingLayout; overwrites: too.
    per_cpu_register: see isa.abi.SystemRegisters.
    bare:       whether its hits are all that it gathers beside what is in `shared`: see `made_bare`.
    shared:     maps of a glob that its tables are in. function: its key there.
    maps:       of the session, where the program names some.
    records:    the ring that it shares with others; None where it has its own.
    """

    program: Program = field(default_factory=lambda: Program(None, (Update(HITS),)))
    per_cpu: int | None = None
    cpu: Expr | None = None
    unmapped: Reads | Missing = UNREAD
    table_bits: int = 9
    ring_bits: int = 9
    overwrites: bool = False
    entry: EntryProgram = field(default_factory=EntryProgram)
    per_cpu_register: str = ""
    bare: bool = False
    shared: SharedMaps | None = None
    function: int = 0
    maps: SessionMaps | None = None
    records: SharedRecords | None = None
    _lowered: list[tuple[LoweringContext, Code]] = field(init=False, default_factory=list, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        program: Program,
        per_cpu: int | None,
        cpu: Expr | None,
        unmapped: Reads | Missing = UNREAD,
        table_bits: int = 9,
        ring_bits: int = 9,
        *,
        overwrites: bool = False,
    ) -> Handler:
        others = tuple(action for action in program.actions if not _is_count(action))
        whole = replace(program, actions=(Update(HITS), *others))
        return cls(whole, per_cpu, cpu, unmapped, table_bits, ring_bits, overwrites)

    def using(self, maps: SessionMaps) -> Handler:
        """Return the same with the session's maps, where the program names some. Raises OptprobeError."""
        if not self.program.maps:
            return self
        maps.declare(self.program.maps)
        return replace(self, maps=maps)

    def made_bare(self) -> Handler | None:
        """Return the same with a word of memory, its hits; None where it gathers more, faults among it.

        What is in maps, or in a ring, that it shares takes none; these count what finds no room, of all that is bare.
        """
        others = self.program.actions[1:]
        in_maps = all(isinstance(each, Update) and isinstance(each.target, HashMap) for each in others)
        in_ring = self.records is not None and all(isinstance(each, Emit | Put) for each in others)
        if self.is_plain or (others and not (in_ring or (self.shared is not None and in_maps))):
            return None
        if self.entry.actions or self.entry.words or any(map(may_fault, self.program.operands())):
            return None
        return replace(self, bare=True)

    def at_index(self, index: int) -> Handler:
        """Return the same for the member of a block with this index by itself."""
        return replace(self, program=with_index(self.program, Constant(index)))

    def for_function(self, function: int) -> Handler:
        """Return the same with another key in the maps that it shares."""
        if self.shared is None or function == self.function:
            return self

        def keyed(action: Statement) -> Statement:
            if not (isinstance(action, Update) and isinstance(action.target, HashMap)):
                return action
            return replace(action, by=(Constant(function), *action.by[1:]))

        actions = tuple(map(keyed, self.program.actions))
        return replace(self, program=replace(self.program, actions=actions), function=function)

    def sharing(self, maps: SharedMaps, function: int) -> Handler:
        """Return the same with its tables in `maps`; as it is where it has none, or others than those have."""
        maps.decide(self.cells)
        def shared(action: Kind) -> Kind | Update:
            return maps.by_function(action, function) if isinstance(action, Update) else action

        actions = tuple(shared(action) for action in self.program.actions[1:])
        program = replace(self.program, actions=(self.program.actions[0], *actions))
        entry = tuple(shared(action) for action in self.entry.actions)
        found = replace(
            self, program=program, entry=replace(self.entry, actions=entry), shared=maps, function=function
        )
        if not maps.takes([layout for _, layout in found.tables]):
            return self
        return replace(found, table_bits=maps.bits)

    def fitting(self, size: int) -> Handler | None:
        """Return the same with tables and a ring so small that `size` bytes are enough."""
        for bits in reversed(range(1, max(self.table_bits, self.ring_bits))):
            found = replace(self, table_bits=min(bits, self.table_bits), ring_bits=min(bits, self.ring_bits))
            if found.size <= size:
                return found
        return None

    @cached_property
    def is_plain(self) -> bool:
        """Whether it counts every hit, and that is all."""
        nothing_else = self.program.condition is None and len(self.program.actions) == 1
        nothing_else = nothing_else and not self.entry.actions
        return nothing_else and not any(may_fault(each) for each in self.entry.expressions)

    @cached_property
    def objects(self) -> tuple[Cell | HashMap | Records, ...]:
        """What the program fills, then what is filled at a function's entry."""
        return (*self.program.objects, *self.entry.objects)

    @property
    def note(self) -> str:
        """Return what `str` would read of keys and records; "" where they hold no pointer to characters."""
        kept = (target.columns for target in self.objects if not isinstance(target, Cell))
        labels = dict.fromkeys(column.label for columns in kept for column in columns if column.points_to_text)
        return "; ".join(f"{label} is an address, and str({label}) the text there" for label in labels)

    def only_if(self, by: Expr) -> Handler:
        """Return the same where `by` holds."""
        test = And(by, self.program.condition) if self.program.condition is not None else by
        return replace(self, program=replace(self.program, condition=test))

    def storing(self, puts: Sequence[Put]) -> Handler:
        """Return the same with words stored in the place of a stop."""
        others = (action for action in self.program.actions if not isinstance(action, Stop))
        return replace(self, program=replace(self.program, actions=(*others, *puts)))

    @cached_property
    def reads(self) -> frozenset[str]:
        """The registers that the program reads."""
        return self.program.registers

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """What the user asked for beside a count and without a key, in order."""
        return tuple(target for target in self.objects[1:] if isinstance(target, Cell))

    @cached_property
    def tables(self) -> tuple[tuple[HashMap, HashMapLayout], ...]:
        """What is asked for by key, in order."""
        found = (target for target in self.objects if isinstance(target, HashMap))
        return tuple((one, HashMapLayout(one.key_size // WORD, one.aggregate, self.table_bits)) for one in found)

    @cached_property
    def ring(self) -> RingLayout | None:
        """Its own ring, where all kinds of its records go; None where it makes none, or shares one."""
        sizes = [target.size for target in self.objects if isinstance(target, Records)]
        if not sizes or self.records is not None:
            return None
        return RingLayout(max(sizes) // WORD, self.ring_bits, self.overwrites, frozenset(self.kinds))

    @property
    def ring_layout(self) -> RingLayout | None:
        """The layout of the ring that it writes to."""
        return self.records.layout if self.records is not None else self.ring

    @cached_property
    def kinds(self) -> Mapping[int, Records]:
        """The kinds of records in the ring, by number."""
        found = ((number, one) for number, one in enumerate(self.objects) if isinstance(one, Records))
        return {number if one.kind is None else one.kind: one for number, one in found}

    def kind_of(self, target: Records) -> int:
        """Return the number of a kind of records."""
        if target.kind is not None:
            return target.kind
        return next(number for number, one in enumerate(self.objects) if one is target)

    @property
    def head_size(self) -> int:
        """Bytes of guest memory, tables and the ring left out."""
        return WORD * len(self.head())

    @property
    def ring_offset(self) -> int:
        """Where in guest memory the ring begins."""
        return self.head_size + sum(layout.size for _, layout in self.own_tables)

    @property
    def own_tables(self) -> tuple[tuple[HashMap, HashMapLayout], ...]:
        """The tables that it shares with no other probe."""
        return self.tables if self.shared is None else ()

    def columns(self, table: HashMap) -> tuple[Column, ...]:
        """Return the columns of a table's keys that were typed."""
        return table.columns if self.shared is None else table.columns[1:]

    @property
    def size(self) -> int:
        """Bytes of guest memory."""
        return self.ring_offset + (self.ring.size if self.ring is not None else 0) + len(self._end)

    @property
    def sizes(self) -> Sequence[str]:
        """The commands that set those of its tables and ring."""
        tables = [f"set optprobe table-keys {1 << self.table_bits}"] if self.own_tables else []
        return [*tables, f"set optprobe ring-records {1 << self.ring_bits}"] if self.ring else tables

    def head(self) -> tuple[int, ...]:
        """Return the words before the first hit."""
        if self.is_plain or self.bare:
            return (0,)
        lost = (0,) * (len(self.tables) - len(self.own_tables))
        return (0, 0, *(word for cell in self.cells for word in aggregate.initial(cell.aggregate)), *lost)

    def initial(self) -> bytes:
        """Return the content of the memory before the first hit."""
        tables = b"".join(layout.initial() for _, layout in self.own_tables)
        ring = self.ring.initial() if self.ring is not None else b""
        return aggregate.encode(self.head()) + tables + ring + self._end

    @property
    def _end(self) -> bytes:
        return b"" if self.is_plain or self.bare else END

    def cell_words(self) -> Iterator[tuple[Cell, slice]]:
        """Yield where in the head each cell has its words."""
        at = _BEFORE_CELLS
        for cell in self.cells:
            yield cell, slice(at, at + cell.aggregate.words)
            at += cell.aggregate.words

    def run(self, hit: Hit) -> Outcome:
        """Return what a hit that stopped the guest does. The clock runs on while GDB looks, so to ask for it is a
        fault.
        """
        if self.is_plain:
            return Outcome(held=True)
        return interpreter.run(self.program, self.interpreted_hit(hit))

    def interpreted_hit(self, hit: Hit) -> interpreter.Hit:
        """Return a hit that stopped the guest, as the interpreter has it."""
        found = interpreted_hit(hit, self.unmapped, self.per_cpu_register if PerCpuBase() in self._nodes() else "")
        return found if self.maps is None else replace(found, maps=self.maps.by_name())

    @property
    def dereferences(self) -> bool:
        """Whether memory is read that may not be there."""
        return self.program.dereferences or any(map(dereferences, self.entry.expressions))

    def _nodes(self) -> Iterator[Operand]:
        """Yield the operands of the program and of the entry's program."""
        yield from self.program.nodes()
        for expression in self.entry.expressions:
            yield from nodes(expression)

    @property
    def stops(self) -> bool:
        """Whether a hit hands the guest to the user."""
        return self.program.stop is not None

    def code(
        self,
        isa: Isa,
        plan: CodeSite,
        dead: Dead,
        memory: int,
        readers: ProbeReadRoutines | None,
        pad: StopPad | None = None,
        passed: Dead = _NOTHING_DEAD,
        kept: OuterSaves = _NOTHING_KEPT,
    ) -> Code:
        """Return what runs in a detour, with its memory at `memory`. dead: before the probed instruction.

        pad: where it goes to stop. passed: of one that stops, what is dead where it does not. kept: as there.
        Asked again for the same, it returns the same. Raises NotLowered.
        """
        if self.is_plain:
            return counting(isa, memory, dead, plan.base)
        around = LoweringContext(
            address=plan.address,
            objects=tuple(self.addresses(memory))[: len(self.program.objects)],
            lost=tuple(self._lost_addresses(memory))[: len(self.program.objects)],
            faults=memory + WORD,
            dead=dead,
            per_cpu=self.per_cpu,
            base=plan.base,
            table_bits=self.table_bits,
            ring=self.ring_layout,
            cpu=self.cpu,
            readers=readers,
            pad=pad.address if pad is not None else None,
            passed=passed,
            kept=kept,
            maps=self.maps.addresses(self.program.maps, memory) if self.maps is not None else {},
            most=self.maps.rooms(self.program.maps) if self.maps is not None else {},
        )
        for known, code in self._lowered:
            if known == around:
                return code
        code = lower(self.program, around, isa.codegen)
        self._lowered[:] = [(around, code)]
        return code

    def forget_code(self) -> None:
        """Free the lowered program; it is lowered anew when it is needed again."""
        self._lowered.clear()

    def at_entry(self, memory: int) -> LoweringContext | None:
        """Of what a return probe does where its function is entered; None where it does nothing there but save."""
        if not self.entry.actions:
            return None
        first = len(self.program.objects)
        return LoweringContext(
            address=0,
            objects=tuple(self.addresses(memory))[first:],
            lost=tuple(self._lost_addresses(memory))[first:],
            faults=memory + WORD,
            table_bits=self.table_bits,
            ring=self.ring_layout,
            first_kind=first,
            cpu=self.cpu,
        )

    def act_at_entry(self, hit: Hit) -> Outcome:
        """Run the entry's program for a hit that stopped the guest there."""
        return interpreter.run(Program(None, self.entry.actions), self.interpreted_hit(hit))

    @contextmanager
    def errors_at_source(self, spec: Spec) -> Iterator[None]:
        """Raise an OptprobeError that points at what was typed for NotLowered. spec: what this was compiled from."""
        try:
            yield
        except NotLowered as stuck:
            why = Missing(stuck.why)
            if stuck.why == UNMAPPED and isinstance(self.unmapped, Missing):
                why = self.unmapped  # why such memory is not read in this guest
            if spec.program is not None:
                raise OptprobeError(f"the script's probe at {spec.location}: {why.message}", why.hint) from None
            raise fault(why.message, self._source_of(stuck.node, spec), why.hint) from None

    def _source_of(self, node: object, spec: Spec) -> Fragment:
        """Return the part of the typed line that `node` was compiled from; a part near it where that is not known."""
        at_entry = [part for part in spec.entry_actions if part.first_word().text != SAVE]
        if (found := _action_with(node, at_entry, self.entry.actions)) is not None:
            return found
        if any(each is node for expression in self.entry.expressions for each in nodes(expression)):
            # A saved word, the condition at the entry, or a parameter that the program at the return names.
            first = spec.entry_actions[0] if spec.entry_actions else spec.entry_condition
            if first is not None:
                return first
        test, condition = self.program.condition, spec.condition_part
        if condition is not None and test is not None and any(each is node for each in nodes(test)):
            return condition
        others = [part for part in spec.action_parts if part.text != "count"]
        return _action_with(node, others, self.program.actions[1:]) or condition or spec.action_parts[0]

    def addresses(self, memory: int) -> Iterator[int]:
        """Yield the address of each object, in their order. memory: its own."""
        cells = iter([memory, *(memory + WORD * place.start for _, place in self.cell_words())])
        table = memory + self.head_size
        if self.shared is not None and self.shared.memory is not None:  # else only costs are asked for
            table = self.shared.memory.address
        tables = iter(self.tables)
        for target in self.objects:
            if isinstance(target, HashMap):
                yield table
                table += next(tables)[1].size
            elif isinstance(target, Cell):
                yield next(cells)
            else:
                yield self.records.address if self.records is not None else memory + self.ring_offset


    @property
    def counts_lost(self) -> bool:
        """Whether it counts what finds no room in maps that it shares by itself; else they do, for all that share them.
        """
        return self.shared is not None and not self.bare

    def lost_words(self) -> Iterator[int]:
        """Yield where in the head each table that is shared counts the values of this probe that find no room."""
        yield from range(len(self.head()) - len(self.tables) * self.counts_lost, len(self.head()))

    def _lost_addresses(self, memory: int) -> Iterator[int]:
        """Yield the address of what counts lost values for each object, in their order; nothing where tables do."""
        words = self.lost_words()
        for target in self.objects if self.counts_lost else ():
            yield memory + WORD * next(words) if isinstance(target, HashMap) else 0


def interpreted_hit(hit: Hit, unmapped: Reads | Missing, per_cpu_register: str) -> interpreter.Hit:
    """Return a hit that stopped the guest, as the interpreter has it. per_cpu_register: "" where it is not needed."""
    per_cpu = hit.regs[per_cpu_register] if per_cpu_register else 0
    probe_read = None if isinstance(unmapped, Missing) else partial(unmapped.read, hit.regs)
    return interpreter.Hit(hit.regs, hit.read, per_cpu, probe_read=probe_read)


def _is_count(action: object) -> bool:
    """Return whether an action is a count without a key, which the hits are themselves."""
    return isinstance(action, Update) and isinstance(action.target, Cell) and isinstance(action.target.aggregate, Count)


def _action_with(node: object, parts: Sequence[Fragment], actions: Sequence[Statement]) -> Fragment | None:
    """Return the part that was compiled to the action with `node` in it; None where no action has it."""
    if len(parts) == 1 and len(actions) > 1:
        parts = [*parts] * len(actions)  # one block of statements
    for part, action in zip(parts, actions, strict=True):
        if action is node or any(each is node for operand in operands(action) for each in nodes(operand)):
            return part
    return None
