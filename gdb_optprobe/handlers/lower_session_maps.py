"""Lower operations on the session's maps (maps/session_map.py): find or add a key's entry, then change its value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

from gdb_optprobe.handlers.ir import (
    WORD,
    Binary,
    Clock,
    Constant,
    Convert,
    Delete,
    Expr,
    Get,
    Has,
    Length,
    Literal,
    Load,
    Map,
    MapStatement,
    Modify,
    Operand,
    Set,
    Slice,
    Statement,
    StringLoad,
    Update,
    Variable,
    nodes,
)
from gdb_optprobe.handlers.lower_expressions import ExpressionLowering, NotLowered, beyond, literal_words
from gdb_optprobe.handlers.lower_maps import update
from gdb_optprobe.isa.codegen import (
    Address,
    Arithmetic,
    Comparison,
    Emitter,
    Label,
    MemoryValue,
    noted,
)
from gdb_optprobe.maps.aggregate import Average, Count, Greatest, Least, Stats, Sum
from gdb_optprobe.maps.aggregate import number as as_number
from gdb_optprobe.maps.session_map import (
    ABSENT,
    DROPPED,
    ENTRY_MASK,
    FACTOR,
    FREE,
    HEADER,
    KEYS,
    USED,
    SessionMapLayout,
)

Word = str | int | Address
"""A word of a key: in a register, a constant, or in the frame."""
FEW = 4
"""Words of a value that are gone through without a loop."""
IN_REGISTERS = 3
"""Words of a key that are kept in registers; where it has more, all but constants are in the frame."""


def session_layout(target: Map) -> SessionMapLayout:
    """Return the layout of a map."""
    value = target.value_size // WORD if isinstance(target.value, tuple) else target.value
    return SessionMapLayout(target.key_size // WORD, value, target.most)


def key_in_frame(target: Map) -> int:
    """Return how many bytes of the frame a key needs at most."""
    return target.key_size if target.key_size > WORD * IN_REGISTERS else 0


@dataclass(frozen=True, slots=True)
class _Table:
    """A map in guest memory. at: its address."""

    layout: SessionMapLayout
    at: int

    def header(self, offset: int) -> Address:
        return Address(offset=self.at + offset, near=True)


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """A register for the address of a key's entry, which stays where it is as long as a program runs; 0 for none.

    is_known: whether the register has it already. is_there: whether that is certainly not 0.
    """

    register: str
    is_known: bool = False
    is_there: bool = False


def key_of(statement: Statement) -> tuple[Map, tuple[Operand, ...]] | None:
    """Return the key that a statement finds or adds; None for none, or for one that is another each time."""
    match statement:
        case Update(Map() as target, _, by) if by:
            pass
        case Get(target, by) | Set(target, by) | Modify(target, by) | Has(target, by) | Delete(target, by) if by:
            pass
        case _:
            return None
    return None if any(isinstance(node, Clock) for operand in by for node in nodes(operand)) else (target, by)


def adds_to(statement: Statement) -> Map | None:
    """Return the map that a statement may add a key to."""
    match statement:
        case Update(Map() as target) | Set(target) | Modify(target):
            return target
        case _:
            return None


def finds_again(first: Statement, later: Statement) -> bool:
    """Return whether a statement looks for the key that an earlier one has found or added."""
    return isinstance(later, Get | Has | Delete) and (key := key_of(later)) is not None and key == key_of(first)


class MapLowering:
    """Lowers statements about maps.

    maps: the addresses of maps, by name. most: keys that they have room for, where it is less than the program says.
    scratch: the offset in the frame of a place for a key.
    """

    def __init__(self, emit: Emitter, maps: Mapping[str, int], most: Mapping[str, int], scratch: int) -> None:
        self._emit = emit
        self._maps = maps
        self._most = most
        self._scratch = scratch
        self._held: HeldEntry | None = None

    def lower(
        self, statement: MapStatement | Update, words: ExpressionLowering, held: HeldEntry | None = None
    ) -> None:
        """Lower a statement. held: for the entry of its key."""
        self._held = held
        match statement:
            case Update(Map() as target, value, by):
                self._update(target, by, value or Constant(0), words)
            case Get(target, by, into):
                self._get(target, by, into, words)
            case Set(target, by, stored):
                self._set(target, by, stored, words)
            case Modify():
                self._modify(statement, words)
            case Has(target, by, into):
                self._has(target, by, into, words)
            case Delete(target, by, had):
                self._delete(target, by, had, words)
            case Length(target, into):
                self._length(target, into, words)

    def table(self, target: Map) -> _Table:
        layout, most = session_layout(target), self._most.get(target.name)
        return _Table(layout if most is None else replace(layout, most=most), self._maps[target.name])

    # statements

    def _update(self, target: Map, by: Sequence[Operand], value: Expr, words: ExpressionLowering) -> None:
        layout, done = self.table(target).layout, Label()
        assert not isinstance(layout.value, int)
        with (
            words.operand(value) as operand,
            self._entry(target, by, words, done, create=True) as entry,
            noted(self._emit, "update"),
        ):
            place = beyond(entry, layout.value_offset)
            if isinstance(layout.value, Least | Greatest):
                self._extreme(layout, layout.value, place, operand)
            else:
                if isinstance(layout.value, Sum):
                    self._emit.store(beyond(entry, layout.state), 1)
                update(self._emit, layout.value, place, operand, words.apart)
        self._emit.bind(done)

    def _extreme(
        self, layout: SessionMapLayout, kind: Least | Greatest, place: Address, value: str | int
    ) -> None:
        """Keep the extreme; tell apart that it was seen only where it is as in the beginning."""
        emit, other = self._emit, Label()
        with emit.pool.scratch() if isinstance(value, int) else nullcontext(value) as word:
            if isinstance(value, int):
                emit.constant(word, value)
            test = Comparison.LT if isinstance(kind, Least) else Comparison.GT
            emit.atomic_extreme(test, place, word, kind.signed)
            emit.branch(Comparison.NE, word, layout.initial_words[0], False, other)
            emit.store(beyond(place, WORD), 1)
            emit.bind(other)

    def _get(self, target: Map, by: Sequence[Operand], into: Variable | Slice, words: ExpressionLowering) -> None:
        table, done = self.table(target), Label()
        if isinstance(into, Slice):
            place = words.place(into.buffer, into.offset)
            missing = self._apart(words, done, lambda: words.zero(place, into.size))
            with self._entry(target, by, words, missing, create=False) as entry:
                self._copied(table.layout, entry, place, into.size, missing)
            self._emit.bind(done)
        else:
            with self._assigned(into, words, by) as to:
                missing = self._apart(words, done, lambda: self._emit.constant(to, 0))
                with self._entry(target, by, words, missing, create=False) as entry:
                    self._number(target, table.layout, entry, to, missing)
                self._emit.bind(done)

    def _set(self, target: Map, by: Sequence[Operand], stored: Sequence[Operand], words: ExpressionLowering) -> None:
        table, done = self.table(target), Label()
        layout, emit = table.layout, self._emit
        with ExitStack() as stack:
            value = self._words(stack, stored, words, in_place=True) if layout.value == 1 else []
            absent = self._dropped(words, table, done)
            for word in value:
                self._refuse_absent(word, stored[0], absent)
            entry = stack.enter_context(self._entry(target, by, words, done, create=True))
            at = layout.value_offset
            if value:
                emit.store(beyond(entry, at), _held(value[0]))
            else:
                for operand in stored:
                    at = self._stored(operand, beyond(entry, 0), at, words)
                emit.publish(beyond(entry, layout.state), 1)
        emit.bind(done)

    def _modify(self, statement: Modify, words: ExpressionLowering) -> None:
        target, emit = statement.map, self._emit
        table, over = self.table(target), Label()
        with words.operand(statement.value) as operand, ExitStack() as stack:
            old, new = (stack.enter_context(emit.pool.scratch()) for _ in range(2))

            def computed(to: str, left: str) -> None:
                words.operate(to, statement.op, left, operand)

            def without_room() -> None:
                emit.constant(old, 0)
                computed(new, old)

            full = self._apart(words, over, without_room)
            refused = self._dropped(words, table, over)
            with self._entry(target, statement.by, words, full, create=True) as entry:
                again, there = Label(), Label()
                value = beyond(entry, table.layout.value_offset)
                emit.bind(again)
                emit.load(old, MemoryValue(value))
                with emit.pool.scratch() as absent:
                    emit.constant(absent, ABSENT)
                    emit.branch(Comparison.NE, old, absent, False, there)
                    emit.constant(old, 0)
                    computed(new, old)
                    emit.branch(Comparison.EQ, new, absent, False, refused)
                    emit.compare_and_swap(value, absent, new, again)
                    emit.jump(over)
                    emit.bind(there)
                    computed(new, old)
                    emit.branch(Comparison.EQ, new, absent, False, refused)
                emit.compare_and_swap(value, old, new, again)
            emit.bind(over)
            for variable, word in ((statement.old, old), (statement.new, new)):
                if variable is not None:
                    words.assign(variable, word)

    def _has(self, target: Map, by: Sequence[Operand], into: Variable, words: ExpressionLowering) -> None:
        table, done = self.table(target), Label()
        with self._assigned(into, words) as to:
            missing = self._apart(words, done, lambda: self._emit.constant(to, 0))
            with self._entry(target, by, words, missing, create=False) as entry:
                self._absent(table.layout, entry, missing)
                self._emit.constant(to, 1)
            self._emit.bind(done)

    def _delete(self, target: Map, by: Sequence[Operand], had: Variable | None, words: ExpressionLowering) -> None:
        table, done, emit = self.table(target), Label(), self._emit
        layout = table.layout
        with ExitStack() as stack:
            found = stack.enter_context(self._assigned(had, words)) if had is not None else None
            missing = done if found is None else self._apart(words, done, lambda: emit.constant(found or "", 0))
            entry = stack.enter_context(self._entry(target, by, words, missing, create=False))
            value = beyond(entry, layout.value_offset)
            if layout.value == 1 and found is not None:
                self._exchange(found, value, ABSENT)
                with emit.pool.scratch() as absent:
                    emit.constant(absent, ABSENT)
                    emit.compare(Comparison.NE, found, found, absent, False)
            else:
                if found is not None:
                    self._absent(layout, entry, missing)
                    emit.constant(found, 1)
                if isinstance(layout.value, int) and layout.value > 1:
                    emit.store(beyond(entry, layout.state), 0)
                else:
                    self._reset(layout, entry)
            emit.bind(done)

    def _length(self, target: Map, into: Variable, words: ExpressionLowering) -> None:
        table, emit = self.table(target), self._emit
        with self._assigned(into, words) as count, emit.pool.scratch() as entry, emit.pool.scratch() as left:
            look, absent, done = Label(), Label(), Label()
            emit.constant(count, 0)
            self.first_entry(table, entry, left)
            emit.bind(look)
            emit.branch(Comparison.EQ, left, 0, False, done)
            self._absent(table.layout, Address(entry), absent)
            emit.binary(Arithmetic.ADD, count, count, 1, 64, False)
            emit.bind(absent)
            emit.binary(Arithmetic.ADD, entry, entry, table.layout.entry_size, 64, False)
            emit.binary(Arithmetic.SUB, left, left, 1, 64, False)
            emit.jump(look)
            emit.bind(done)

    # for loops over keys

    def first_entry(self, table: _Table, entry: str, left: str) -> None:
        """Load the address of the first entry, and how many are given out."""
        emit, bounded = self._emit, Label()
        if table.layout.key_words:
            emit.load(left, MemoryValue(table.header(USED)))
            emit.branch(Comparison.LE, left, table.layout.entries, False, bounded)
        emit.constant(left, table.layout.entries)
        emit.bind(bounded)
        emit.address(entry, table.header(HEADER))

    def taken(
        self, target: Map, entry: str, key: Slice | None, value: Variable | Slice | None, words: ExpressionLowering,
        absent: Label,
    ) -> None:  # fmt: skip
        """Load the key and the value of an entry; jump to the label if it has no value."""
        layout = self.table(target).layout
        self._absent(layout, Address(entry), absent)
        if key is not None:
            self._move(Address(entry), words.place(key.buffer, key.offset), layout.key_words * WORD)
        if isinstance(value, Slice):
            self._copied(layout, Address(entry), words.place(value.buffer, value.offset), value.size, absent)
        elif value is not None:
            with self._assigned(value, words) as to:
                self._number(target, layout, Address(entry), to, absent)

    # values

    def _number(self, target: Map, layout: SessionMapLayout, entry: Address, to: str, missing: Label) -> None:
        """Load what a value amounts to, as a word; jump to the label if there is none."""
        emit, value = self._emit, beyond(entry, layout.value_offset)
        match layout.value:
            case 1:
                emit.load(to, MemoryValue(value))
                with emit.pool.scratch() as absent:
                    emit.constant(absent, ABSENT)
                    emit.branch(Comparison.EQ, to, absent, False, missing)
            case int():
                emit.branch(Comparison.EQ, MemoryValue(beyond(entry, layout.state)), 0, False, missing)
                emit.acquire()
                emit.load(to, MemoryValue(value))
            case Count() | Sum():
                emit.load(to, MemoryValue(value))
            case Least() | Greatest():
                seen = Label()
                emit.load(to, MemoryValue(value))
                emit.branch(Comparison.NE, to, layout.initial_words[0], False, seen)
                emit.branch(Comparison.EQ, MemoryValue(beyond(value, WORD)), 0, False, missing)
                emit.bind(seen)
            case Average(signed) | Stats(signed):
                with emit.pool.scratch() as count:
                    emit.load(count, MemoryValue(value))
                    emit.branch(Comparison.EQ, count, 0, False, missing)
                    emit.load(to, MemoryValue(beyond(value, WORD)))
                    emit.binary(Arithmetic.DIV, to, to, count, 64, signed)
            case _:
                raise NotLowered(Get(target, (), Variable("")), "a histogram is no number")

    def _copied(self, layout: SessionMapLayout, entry: Address, to: Address, size: int, missing: Label) -> None:
        """Copy a stored value, and zeros behind it; jump to the label if there is none."""
        emit, taken = self._emit, min(size, WORD * layout.value_words)
        if layout.has_state:
            emit.branch(Comparison.EQ, MemoryValue(beyond(entry, layout.state)), 0, False, missing)
            emit.acquire()
            self._move(beyond(entry, layout.value_offset), to, taken)
        else:
            with emit.pool.scratch() as word, emit.pool.scratch() as absent:
                emit.load(word, MemoryValue(beyond(entry, layout.value_offset)))
                emit.constant(absent, ABSENT)
                emit.branch(Comparison.EQ, word, absent, False, missing)
                emit.store(to, word)
        for at in range(taken, size, WORD):
            emit.store(beyond(to, at), 0)

    def _move(self, source: Address, to: Address, size: int) -> None:
        with self._emit.pool.scratch() as word:
            for at in range(0, size, WORD):
                self._emit.load(word, MemoryValue(beyond(source, at)))
                self._emit.store(beyond(to, at), word)

    def _absent(self, layout: SessionMapLayout, entry: Address, missing: Label) -> None:
        """Jump to the label if an entry has no value."""
        emit, value = self._emit, beyond(entry, layout.value_offset)
        if not layout.has_state:
            with emit.pool.scratch() as absent:
                emit.constant(absent, ABSENT)
                emit.branch(Comparison.EQ, MemoryValue(value), absent, False, missing)
            return
        state = MemoryValue(beyond(entry, layout.state))
        if isinstance(layout.value, int):
            emit.branch(Comparison.EQ, state, 0, False, missing)
            return
        there = Label()
        emit.branch(Comparison.NE, state, 0, False, there)
        if layout.value_words > FEW:
            with self._each_word(layout, value) as word:
                emit.branch(Comparison.NE, MemoryValue(word), 0, False, there)
        else:
            for at, initial in enumerate(layout.initial_words):
                emit.branch(Comparison.NE, MemoryValue(beyond(value, WORD * at)), initial, False, there)
        emit.jump(missing)
        emit.bind(there)

    def _reset(self, layout: SessionMapLayout, entry: Address) -> None:
        """Give an entry its initial value, and then no state: a sum in between sets its state and is kept."""
        value = beyond(entry, layout.value_offset)
        if layout.value_words > FEW:
            with self._each_word(layout, value) as word:
                self._emit.store(word, 0)
        else:
            for at, initial in enumerate(layout.initial_words):
                self._emit.store(beyond(value, WORD * at), initial)
        if layout.has_state:
            self._emit.publish(beyond(entry, layout.state), 0)

    @contextmanager
    def _each_word(self, layout: SessionMapLayout, value: Address) -> Iterator[Address]:
        """Have the block's code run for each word of a value: a histogram's, which are 0 in the beginning."""
        emit, again = self._emit, Label()
        with emit.pool.scratch() as at, emit.pool.scratch() as left:
            emit.address(at, value)
            emit.constant(left, layout.value_words)
            emit.bind(again)
            yield Address(at)
            emit.binary(Arithmetic.ADD, at, at, WORD, 64, False)
            emit.binary(Arithmetic.SUB, left, left, 1, 64, False)
            emit.branch(Comparison.NE, left, 0, False, again)

    def _exchange(self, to: str, memory: Address, word: int) -> None:
        """Store a word and load what was there, atomically."""
        emit, again = self._emit, Label()
        with emit.pool.scratch() as new:
            emit.constant(new, word)
            emit.bind(again)
            emit.load(to, MemoryValue(memory))
            emit.compare_and_swap(memory, to, new, again)

    def _refuse_absent(self, word: Word, node: Operand, refused: Label) -> None:
        """Jump to the label if a word is the one that cannot be stored."""
        if isinstance(word, int):
            if word == ABSENT:
                self._emit.jump(refused)
            return
        match node:
            case Binary(op) if op.compares:
                return
            case Convert() | Load(size=1 | 2 | 4):
                return
        with self._emit.pool.scratch() as absent:
            self._emit.constant(absent, ABSENT)
            left = MemoryValue(word) if isinstance(word, Address) else word
            self._emit.branch(Comparison.EQ, left, absent, False, refused)

    def _stored(self, operand: Operand, entry: Address, at: int, words: ExpressionLowering) -> int:
        """Store a column of a value at an offset of the entry; return the offset behind it."""
        size = size_of(operand)
        into = beyond(entry, at)
        if isinstance(operand, Slice | Literal):
            words.store_bytes(operand, into)
        elif isinstance(operand, StringLoad) and not operand.mapped:
            words.store_text(operand, into)
        else:
            with ExitStack() as stack:
                for index, word in enumerate(words.words(stack, operand)):
                    self._emit.store(beyond(into, WORD * index), word)
        return at + size

    # keys

    @contextmanager
    def _entry(
        self, target: Map, by: Sequence[Operand], words: ExpressionLowering, missing: Label, create: bool
    ) -> Iterator[Address]:
        """Yield the address of the entry of a key. Jump to the label where there is none, or no room for it."""
        table = self.table(target)
        if not by:
            yield table.header(HEADER)
            return
        emit, held = self._emit, self._held
        if held is not None and held.is_known:
            if not held.is_there:
                emit.branch(Comparison.EQ, held.register, 0, False, missing)
            yield Address(held.register)
            return
        with ExitStack() as stack:
            with noted(emit, "key"):
                key = [self._steady(stack, word) for word in self._words(stack, by, words, in_place=False)]
            if held is None:
                entry = stack.enter_context(emit.pool.scratch(emit.swap_clobbers))
            else:
                entry = held.register
                missing = self._apart(words, missing, lambda: emit.constant(entry, 0))
            with noted(emit, "lookup"):
                self._find(entry, key, table, words, missing, create)
            yield Address(entry)

    def _steady(self, stack: ExitStack, word: Word) -> Word:
        """Return a word that what few hits save does not move: the stack pointer as it is now."""
        pool = self._emit.pool
        if not isinstance(word, str) or word in pool.order:
            return word
        copied = stack.enter_context(pool.scratch(self._emit.swap_clobbers))
        self._emit.copy(copied, word)
        return copied

    def _words(
        self, stack: ExitStack, operands: Sequence[Operand], words: ExpressionLowering, in_place: bool
    ) -> list[Word]:
        """Evaluate operands to words: what is in the frame stays there. in_place: it is no more than fits registers."""
        emit, found, at = self._emit, list[Word](), 0
        in_registers = in_place or sum(map(size_of, operands)) <= WORD * IN_REGISTERS
        for operand in operands:
            size = size_of(operand)
            if isinstance(operand, Literal):
                found += literal_words(operand)
            elif isinstance(operand, Slice):
                place = words.place(operand.buffer, operand.offset)
                found += [beyond(place, offset) for offset in range(0, size, WORD)]
            elif in_registers:
                found += words.words(stack, operand)
            else:
                place = emit.local(self._scratch)
                self._stored(operand, place, at, words)
                found += [beyond(place, at + offset) for offset in range(0, size, WORD)]
                at += size
        return found

    def _find(
        self, entry: str, key: Sequence[Word], table: _Table, words: ExpressionLowering, missing: Label, create: bool
    ) -> None:
        """Look at the first place of a key, where most hits find its entry; the others search apart."""
        emit, layout = self._emit, table.layout
        elsewhere, found = Label(), Label()
        with emit.pool.scratch() as tag:
            self._hash(tag, entry, key)
            emit.binary(Arithmetic.SHR, entry, tag, 64 - layout.bits, 64, False)
            emit.binary(Arithmetic.OR, tag, tag, ENTRY_MASK, 64, False)
            first = Address(None, table.at + layout.index, entry, near=True)
            self._at_place(entry, key, tag, first, table, elsewhere, elsewhere)
            emit.bind(found)

            def search() -> None:
                emit.bind(elsewhere)
                self._search(entry, key, tag, table, create)
                emit.branch(Comparison.NE, entry, 0, False, found)
                emit.jump(missing)

            words.apart.put(emit.pool, search)

    def _hash(self, tag: str, work: str, key: Sequence[Word]) -> None:
        """Compute what SessionMapLayout.hash mixes. work: a register to work with."""
        emit = self._emit
        emit.constant(tag, FACTOR)
        for index, word in enumerate(key):
            if index:
                with emit.pool.scratch() as factor:
                    emit.constant(factor, FACTOR)
                    self._load(work, word)
                    emit.binary(Arithmetic.XOR, tag, tag, work, 64, False)
                    emit.binary(Arithmetic.MUL, tag, tag, factor, 64, False)
            elif isinstance(word, Address):
                self._load(work, word)
                emit.binary(Arithmetic.MUL, tag, tag, work, 64, False)
            else:
                emit.binary(Arithmetic.MUL, tag, tag, word, 64, False)

    def _at_place(
        self, entry: str, key: Sequence[Word], tag: str, place: Address, table: _Table, unnamed: Label, other: Label
    ) -> None:
        """Load the entry that a word of the index names, and compare its key; jump to a label if it is not that one.

        At `unnamed` no entry with this tag is named, and `entry` has that word, xor the tag.
        """
        emit = self._emit
        emit.load(entry, MemoryValue(place))
        emit.binary(Arithmetic.XOR, entry, entry, tag, 64, False)
        emit.branch(Comparison.GE, entry, table.layout.entries, False, unnamed)
        self._entry_of(entry, entry, table)
        for index, word in enumerate(key):
            there = MemoryValue(Address(entry, WORD * index))
            if isinstance(word, Address):
                with emit.pool.scratch() as wanted:
                    self._load(wanted, word)
                    emit.branch(Comparison.NE, there, wanted, False, other)
            else:
                emit.branch(Comparison.NE, there, word, False, other)

    def _search(self, entry: str, key: Sequence[Word], tag: str, table: _Table, create: bool) -> None:
        """Look at each place from the key's first one on; add the key in a free one. `entry` is 0 where that fails.

        Few hits do this, so what it needs is saved here. Only the word of the index that was looked at, which `entry`
        has at `unnamed`, tells whether the place was free: another hit may have taken it since.
        """
        emit, layout = self._emit, table.layout
        look, unnamed, other, full, lost, dropped, missing, found = (Label() for _ in range(8))
        avoid = emit.swap_clobbers
        in_frame = any(isinstance(word, Address) for word in key)
        with ExitStack() as stack:
            # What is saved moves the frame away from where parts of a key were found in it.
            if not in_frame:
                stack.enter_context(self._lent(3, avoid))
            slot = stack.enter_context(emit.pool.scratch(avoid))
            if tag in avoid:
                kept = stack.enter_context(emit.pool.scratch(avoid))
                emit.copy(kept, tag)
                emit.pool.free(tag)
                tag = kept
            emit.binary(Arithmetic.SHR, slot, tag, 64 - layout.bits, 64, False)
            emit.address(slot, Address(None, table.at + layout.index, slot, near=True))
            emit.bind(look)
            self._at_place(entry, key, tag, Address(slot), table, unnamed, other)
            emit.jump(found)
            emit.bind(unnamed)
            if create:
                emit.branch(Comparison.NE, entry, tag, False, other)
                self._add(entry, key, tag, slot, table, full, lost)
                emit.jump(look)
                emit.bind(lost)
                self._give_back(entry, tag, table)
                emit.jump(look)
                emit.bind(full)  # of keys, but one of them may be this one, which another hit has added since
                emit.branch(Comparison.NE, MemoryValue(Address(slot)), 0, False, look)
                emit.jump(dropped)
            else:
                emit.branch(Comparison.EQ, entry, tag, False, missing)
            emit.bind(other)
            emit.binary(Arithmetic.ADD, slot, slot, WORD, 64, False)
            emit.branch(Comparison.LT, slot, table.at + layout.size, False, look)
            if create:
                emit.bind(dropped)
                emit.atomic_add(table.header(DROPPED), 1)
            emit.bind(missing)
            emit.constant(entry, 0)
            emit.bind(found)

    def _add(
        self, entry: str, key: Sequence[Word], tag: str, slot: str, table: _Table, full: Label, lost: Label
    ) -> None:
        """Give a free entry the key, and name it in the index; jump to the labels if there is none, or if another did.

        entry: a register to work with; at `lost` it has what is not named, the entry's number xor the tag.
        """
        emit, layout, number = self._emit, table.layout, entry
        have = Label()
        emit.branch(Comparison.GE, MemoryValue(table.header(KEYS)), layout.most, False, full)
        self._take_free(number, table)
        emit.binary(Arithmetic.SUB, number, number, 1, 64, False)
        emit.branch(Comparison.LT, number, layout.entries, False, have)
        emit.atomic_fetch_add(number, table.header(USED), 1)
        emit.branch(Comparison.GE, number, layout.entries, False, full)
        emit.bind(have)
        # What is saved meanwhile moves the frame away from where parts of a key were found in it.
        in_frame = any(isinstance(word, Address) for word in key)
        with emit.pool.scratch() if in_frame else self._borrowed() as other:
            self._entry_of(other, number, table)
            for index, word in enumerate(key):
                into = Address(other, WORD * index)
                if isinstance(word, Address):
                    with emit.pool.scratch() as copied:
                        self._load(copied, word)
                        emit.store(into, copied)
                else:
                    emit.store(into, word)
        emit.binary(Arithmetic.XOR, number, number, tag, 64, False)
        emit.compare_and_swap(Address(slot), 0, number, lost)
        emit.atomic_add(table.header(KEYS), 1)

    def _take_free(self, number: str, table: _Table) -> None:
        """Take the first of the free entries: load its number and 1, or 0 if there is none."""
        emit, again, none = self._emit, Label(), Label()
        with self._borrowed() as other:
            emit.bind(again)
            emit.load(number, MemoryValue(table.header(FREE)))
            emit.binary(Arithmetic.AND, other, number, ENTRY_MASK, 64, False)
            emit.binary(Arithmetic.SUB, other, other, 1, 64, False)
            emit.branch(Comparison.GE, other, table.layout.entries, False, none)
            self._entry_of(other, other, table)
            emit.load(other, MemoryValue(Address(other)))
            emit.binary(Arithmetic.AND, other, other, ENTRY_MASK, 64, False)
            self._next_version(other, number)
            emit.compare_and_swap(table.header(FREE), number, other, again)
            emit.bind(none)
            emit.binary(Arithmetic.AND, number, number, ENTRY_MASK, 64, False)

    def _give_back(self, entry: str, tag: str, table: _Table) -> None:
        """Put an entry that no key got on the list of free ones. entry: see _add."""
        emit, number, again = self._emit, entry, Label()
        emit.binary(Arithmetic.XOR, number, number, tag, 64, False)
        with self._borrowed() as other, self._borrowed() as head:
            emit.bind(again)
            emit.load(head, MemoryValue(table.header(FREE)))
            self._entry_of(other, number, table)
            emit.store(Address(other), head)
            emit.binary(Arithmetic.ADD, other, number, 1, 64, False)
            self._next_version(other, head)
            emit.compare_and_swap(table.header(FREE), head, other, again)

    def _next_version(self, to: str, head: str) -> None:
        """Make the list's head of an entry's number and 1, in `to`: with the version after that of `head`."""
        emit = self._emit
        with self._borrowed() as version:
            emit.binary(Arithmetic.OR, version, head, ENTRY_MASK, 64, False)
            emit.binary(Arithmetic.ADD, to, to, version, 64, False)
            emit.binary(Arithmetic.ADD, to, to, 1, 64, False)

    @contextmanager
    def _borrowed(self) -> Iterator[str]:
        """Yield a register that is saved for the block alone, where few hits pass: the others need not save it."""
        with self._lent(1), self._emit.pool.scratch(self._emit.swap_clobbers) as register:
            yield register

    @contextmanager
    def _lent(self, count: int, names: Sequence[str] = ()) -> Iterator[None]:
        """Have so many registers for the block, and these, which code in front of it need not save."""
        emit, pool = self._emit, self._emit.pool
        taken = pool.taken
        usable = [name for name in pool.order if name not in taken]
        saved = {name for name in usable if pool.is_saved(name)}
        ready = [name for name in usable if name in saved and name not in emit.swap_clobbers]
        others = [name for name in usable if name not in saved and name not in pool.read]
        needed = [name for name in others if name not in emit.swap_clobbers][: max(count - len(ready), 0)]
        lent = [*needed, *(name for name in names if name in others)]
        if lent:
            emit.save(lent)
        with pool.lending(lent):
            yield
        if lent:
            emit.restore(lent)

    def _entry_of(self, to: str, number: str, table: _Table) -> None:
        """Load the address of an entry by its number."""
        emit = self._emit
        emit.binary(Arithmetic.MUL, to, number, table.layout.entry_size, 64, False)
        emit.address(to, Address(to, as_number(table.at + HEADER, True), near=True))

    def _load(self, to: str, word: Word) -> None:
        match word:
            case Address():
                self._emit.load(to, MemoryValue(word))
            case str():
                self._emit.copy(to, word)
            case _:
                self._emit.constant(to, word)

    # parts

    @contextmanager
    def _assigned(
        self, variable: Variable, words: ExpressionLowering, by: Sequence[Operand] | None = None
    ) -> Iterator[str]:
        """Yield a register; the variable gets its word at the end of the block.

        by: a key of which nothing is evaluated once the register has changed, if there is one.
        """
        at = words.locals.registers.get(variable.name)
        if at is not None and by is not None and not any(variable in nodes(operand) for operand in by):
            yield at
            return
        with self._emit.pool.scratch() as to:  # the key may be computed from the variable
            yield to
            words.assign(variable, to)

    def _apart(self, words: ExpressionLowering, back: Label, emit: Callable[[], None]) -> Label:
        """Return a label at which what `emit` emits runs, and then the code at `back`."""
        label = Label()

        def code() -> None:
            self._emit.bind(label)
            emit()
            self._emit.jump(back)

        words.apart.put(self._emit.pool, code)
        return label

    def _dropped(self, words: ExpressionLowering, table: _Table, back: Label) -> Label:
        """Return a label that counts a value which cannot be stored."""
        return self._apart(words, back, lambda: self._emit.atomic_add(table.header(DROPPED), 1))


def _held(word: Word) -> str | int:
    assert not isinstance(word, Address)
    return word


def size_of(operand: Operand) -> int:
    """Return the bytes of an operand."""
    match operand:
        case Literal(data):
            return len(data)
        case Slice(size=size):
            return size
        case StringLoad(size=size):
            return -(-size // WORD) * WORD
        case _:
            return WORD

