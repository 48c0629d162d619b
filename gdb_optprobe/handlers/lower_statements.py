"""Lower statements (ir.py): blocks, loops, variables, buffers, and through lower_session_maps.py the session's maps.

    ┌───────────────────────────────┐
    │ open the frame                │  variables without a register, buffers, a place for a long key
    │ zeros                         │  of those that some path reads before it has assigned them
    │ statement                     │
    │ …                             │
    │ what few hits do              │  jumped over: faults, keys that are new, collisions
    │ close the frame               │◄── Return
    └───────────────────────────────┘
The frame is on the stack of what was interrupted, so it is small: FRAME_MOST.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

from gdb_optprobe.handlers.ir import (
    WORD,
    And,
    Assign,
    Binary,
    Break,
    Buffer,
    BytesLoad,
    Cell,
    Constant,
    Continue,
    Copy,
    Cut,
    Delete,
    Each,
    Emit,
    Expr,
    Get,
    Has,
    HashMap,
    If,
    Length,
    Literal,
    Loop,
    Modify,
    Op,
    Operand,
    Part,
    Program,
    Put,
    Records,
    Register,
    Return,
    Set,
    Slice,
    Statement,
    Stop,
    StringLoad,
    Update,
    Variable,
    blocks,
    map_of,
    may_fault,
    nodes,
    operands,
    within,
)
from gdb_optprobe.handlers.lower_expressions import Apart, ExpressionLowering, Locals, NotLowered, beyond
from gdb_optprobe.handlers.lower_session_maps import (
    HeldEntry,
    MapLowering,
    adds_to,
    finds_again,
    key_in_frame,
    key_of,
    size_of,
)
from gdb_optprobe.isa.codegen import (
    Address,
    Arithmetic,
    Comparison,
    Emitter,
    Label,
    MemoryValue,
    TooManyRegisters,
    noted,
)

FRAME_MOST = 512
"""Bytes of a frame: a hit may be deep in a stack of 8 or 16 KiB."""
IN_LOOP = 8
"""Uses of a variable that one in a loop counts for."""
IN_REGISTERS = 3
"""Variables that are kept in registers, those first that are used most."""

Ordinary = Callable[[Update | Emit | Put, ExpressionLowering], None]
"""Lowers an action that is not of scripts alone."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a program keeps on the stack. offsets: of variables. unset: names that may be read unassigned."""

    offsets: Mapping[str, int]
    buffers: Mapping[str, int]
    key: int
    loops: Mapping[int, int]
    """By the id of an Each: where it has its place in the map."""
    size: int
    unset: frozenset[str]


def assigned(statement: Statement) -> tuple[Variable, ...]:
    """Return the variables that a statement itself assigns, if it is carried out."""
    match statement:
        case Assign(variable):
            return (variable,)
        case Get(into=Variable() as into) | Has(into=into) | Length(into=into):
            return (into,)
        case Each(value=Variable() as value):
            return (value,)
        case Modify(old=old, new=new):
            return tuple(each for each in (old, new) if each is not None)
        case Delete(had=Variable() as had):
            return (had,)
        case _:
            return ()


def _slices(statement: Statement) -> Iterator[Slice]:
    """Yield the slices that a statement writes to."""
    match statement:
        case Copy(into) | Cut(into) | Get(into=Slice() as into):
            yield into
        case Each(key=key, value=value):
            yield from (each for each in (key, value) if isinstance(each, Slice))


@dataclass(frozen=True)
class Facts:
    """What is known of a program whatever registers it gets: found once, however often its code is emitted."""

    program: Program
    _changed: dict[int, frozenset[str]] = field(default_factory=dict)
    _keys: dict[int, frozenset[str]] = field(default_factory=dict)
    """By the id of a statement."""

    @cached_property
    def is_flat(self) -> bool:
        """Whether the program has actions alone, and nothing else of a script."""
        program, actions = self.program, (Update, Emit, Put, Stop)
        if program.quiet or program.maps or not all(isinstance(each, actions) for each in program.actions):
            return False
        return not any(isinstance(node, Variable | Part | Slice | Literal) for node in self._nodes)

    @cached_property
    def _nodes(self) -> tuple[Operand, ...]:
        return tuple(self.program.nodes())

    @cached_property
    def registers(self) -> frozenset[str]:
        """The registers that the program reads as they were at the probed address."""
        return frozenset(node.name for node in self._nodes if isinstance(node, Register))

    @cached_property
    def variables(self) -> list[str]:
        """The names of all variables, those first that are used most; a use in a loop counts for several."""
        counts = Counter[str]()

        def count(statements: Sequence[Statement], rounds: int) -> None:
            for each in statements:
                used = (node for operand in operands(each) for node in nodes(operand) if isinstance(node, Variable))
                for variable in (*assigned(each), *used):
                    counts[variable.name] += rounds
                for block in blocks(each):
                    count(block, rounds * IN_LOOP if isinstance(each, Loop | Each) else rounds)

        count(self.program.actions, 1)
        return [name for name, _ in counts.most_common()]

    @cached_property
    def dereferences(self) -> bool:
        return self.program.dereferences

    @cached_property
    def objects(self) -> tuple[Cell | HashMap | Records, ...]:
        return self.program.objects

    @cached_property
    def buffers(self) -> Mapping[str, int]:
        """The sizes of all buffers, by name."""
        found: dict[str, int] = {}
        for buffer in _buffers(self.program):
            found.setdefault(buffer.name, buffer.size)
        return found

    @cached_property
    def unset(self) -> frozenset[str]:
        """The names of what may be read unassigned."""
        return _unset(self.program.actions, frozenset())[0]

    @cached_property
    def _loops(self) -> tuple[int, ...]:
        return tuple(id(each) for each in self.program.statements() if isinstance(each, Each))

    @cached_property
    def _key_size(self) -> int:
        return max((key_in_frame(each) for each in self.program.maps), default=0)

    def frame(self, registers: Collection[str]) -> Frame:
        """Return the frame. registers: the names of variables that have one. Raises NotLowered."""
        at = 0

        def place(size: int) -> int:
            nonlocal at
            at += size
            return at - size

        buffers = {name: place(size) for name, size in self.buffers.items()}
        offsets = {name: place(WORD) for name in self.variables if name not in registers}
        loops = {each: place(2 * WORD) for each in self._loops}
        key = place(self._key_size)
        if at > FRAME_MOST:
            what = f"variables and texts take {at} bytes, and the stack of a hit has room for {FRAME_MOST}"
            raise NotLowered(self.program.actions[0], what)
        return Frame(offsets, buffers, key, loops, at + 15 & ~15, self.unset)

    def changed_within(self, statement: Statement) -> frozenset[str]:
        """Return the names of what a statement and those in its blocks change."""
        if id(statement) not in self._changed:
            names = frozenset(name for each in within((statement,)) for name in _changed(each))
            self._changed[id(statement)] = names
        return self._changed[id(statement)]

    def key_names(self, statement: Statement) -> frozenset[str]:
        """Return the names of all that a statement evaluates."""
        if id(statement) not in self._keys:
            names = frozenset(name for one in operands(statement) for name in _names(one))
            self._keys[id(statement)] = names
        return self._keys[id(statement)]

    def ends(self, first: Statement, later: Statement) -> bool:
        """Return whether the key of one statement may be another behind a later one, or one that has an entry only now.
        """
        if self.key_names(first) & self.changed_within(later):
            return True
        target = map_of(first)
        return any(adds_to(each) == target for each in within((later,)))

    def last_finding_again(self, first: Statement, later: Sequence[Statement]) -> int:
        """Return which is the last of the statements behind `first` that looks for its key as long as that is held; -1.
        """
        found = -1
        if key_of(first) is None or self.key_names(first) & _changed(first):
            return found
        for at, each in enumerate(later):
            inside = blocks(each) if isinstance(each, If) else ()
            if finds_again(first, each) or any(self.last_finding_again(first, block) >= 0 for block in inside):
                found = at
            if isinstance(each, Loop | Each) or self.ends(first, each):
                break
        return found


def _buffers(program: Program) -> Iterator[Buffer]:
    for each in program.statements():
        yield from (place.buffer for place in _slices(each))
        for operand in operands(each):
            yield from (node.buffer for node in nodes(operand) if isinstance(node, Slice | Part))


def _unset(statements: Sequence[Statement], before: frozenset[str]) -> tuple[frozenset[str], frozenset[str] | None]:
    """Return what statements may read before it is assigned, and what is assigned behind them; None: they end there.

    before: what is assigned in front of them. Both results are names of variables, and of buffers behind a tab.
    """
    found, now = frozenset[str](), before
    for each in statements:
        read = {name for operand in operands(each) for name in _names(operand)}
        if isinstance(each, Cut):
            read |= {*_name(each.slice)}
        whole = {name for place in _slices(each) for name in _name(place) if place.size == place.buffer.size}
        # A part of a buffer is filled: the rest of it is read as it was, if no later statement fills it.
        read |= {name for place in _slices(each) for name in _name(place)} - whole
        found |= read - now
        match each:
            case If(_, then, otherwise):
                pieces = [_unset(block, now) for block in (then, otherwise)]
                ends = [end for _, end in pieces if end is not None]
                found = found.union(*(unset for unset, _ in pieces))
                if not ends:
                    return found, None
                now = frozenset.intersection(*ends)
            case Loop(body, step):
                found |= _unset(body, now)[0] | _unset(step, now)[0]
            case Each(_, _, _, body):
                inside = now | {variable.name for variable in assigned(each)} | whole
                found |= _unset(body, inside)[0]
            case Break() | Continue() | Return():
                return found, None
            case _:
                now |= {variable.name for variable in assigned(each)} | whole
    return found, now


def _names(operand: Operand) -> set[str]:
    return {name for node in nodes(operand) for name in _name(node)}


def _changed(statement: Statement) -> set[str]:
    """Return the names of what a statement changes."""
    return {one.name for one in assigned(statement)} | {name for place in _slices(statement) for name in _name(place)}


def _not_zero(condition: Expr) -> Iterator[str]:
    """Yield the names of variables that are not 0 where a condition holds."""
    match condition:
        case Variable(name) | Binary(Op.NE, Variable(name), Constant(0)):
            yield name
        case And(left, right):
            yield from (*_not_zero(left), *_not_zero(right))


def _name(node: Operand) -> tuple[str, ...]:
    match node:
        case Variable(name):
            return (name,)
        case Slice(buffer) | Part(buffer):
            return ("\t" + buffer.name,)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class _Found:
    """An entry that statements of a block, and of the blocks within, need not look for again.

    by:   the statement that has found it. held: where it is.
    last: the number of the last statement that needs it in the block of `by`.
    word: the name of a variable that is not 0 only where there is one; "" for none.
    """

    by: Statement
    held: HeldEntry
    last: int
    word: str

    def behind(self, statement: Statement, facts: Facts) -> _Found | None:
        """Return what is known behind a statement; None where it may need to be looked for again."""
        if facts.ends(self.by, statement):
            return None
        return replace(self, word="") if self.word in facts.changed_within(statement) else self

    def where(self, condition: Expr) -> _Found:
        """Return what is known where a condition holds."""
        return replace(self, held=replace(self.held, is_there=True)) if self.word in _not_zero(condition) else self


class StatementLowering:
    """Lowers the statements of a program.

    pc:       see ExpressionLowering. facts: of the program. registers: of variables, by name.
    faults:   the address of the counter of faults. maps, most: see MapLowering.
    may_hold: whether registers may keep the entries that were found for later statements.
    """

    def __init__(
        self,
        emit: Emitter,
        pc: tuple[str, int],
        facts: Facts,
        registers: dict[str, str],
        maps: Mapping[str, int],
        most: Mapping[str, int],
        faults: int,
        may_hold: bool,
    ) -> None:
        self._emit = emit
        self._facts, self._quiet = facts, facts.program.quiet
        self._may_hold = may_hold and self._quiet
        self._frame = facts.frame(registers)
        places = Locals(self._quiet, registers, {**self._frame.offsets}, {**self._frame.buffers})
        self._words = ExpressionLowering(emit, pc, places, Apart())
        self._maps = MapLowering(emit, maps, most, self._frame.key)
        self._faults = faults
        self._finish = Label()
        self._loops: list[tuple[Label, Label]] = []
        """Where Continue and Break lead, the innermost loop last."""

    def lower(self, ordinary: Ordinary) -> None:
        """Lower all statements. ordinary: for an Update of a cell or a table, an Emit and a Put."""
        self._ordinary = ordinary
        emit, size = self._emit, self._frame.size
        if size:
            emit.open_frame(size)
        self._zeros()
        self._block(self._facts.program.actions)
        if self._words.apart:
            emit.jump(self._finish)
            with noted(emit, "what few hits do"):
                self._words.apart.emit(emit.pool)
        emit.bind(self._finish)
        if size:
            emit.close_frame()

    def _zeros(self) -> None:
        for name in sorted(self._frame.unset):
            if name.startswith("\t"):
                at = self._frame.buffers[name[1:]]
                self._words.zero(self._emit.local(at), self._facts.buffers[name[1:]])
            elif name in self._words.locals.registers:
                self._emit.constant(self._words.locals.registers[name], 0)
            else:
                self._emit.store(self._emit.local(self._frame.offsets[name]), 0)

    def _block(self, statements: Sequence[Statement], around: Sequence[_Found] = ()) -> None:
        """Lower the statements of a block. around: entries that were found in front of it."""
        known, own = [*around], list[_Found]()
        for at, each in enumerate(statements):
            words = self._words.with_own_fault()
            held = next((one.held for one in known if finds_again(one.by, each)), None)
            last = self._facts.last_finding_again(each, statements[at + 1 :]) if self._may_hold and held is None else -1
            if last >= 0:
                held = HeldEntry(self._emit.pool.allocate(self._emit.probe_read_clobbers))
            self._statement(each, words, held, known)
            known = [behind for one in known if (behind := one.behind(each, self._facts)) is not None]
            if last >= 0 and held is not None:
                word = each.into.name if isinstance(each, Get | Has) and isinstance(each.into, Variable) else ""
                own.append(_Found(each, replace(held, is_known=True), at + 1 + last, word))
                known.append(own[-1])
            if words.faulted:
                done = Label()
                self._emit.bind(done)
                self._counted(words.fault, done)
            for one in own:
                if one.last == at:
                    self._emit.pool.free(one.held.register)
                    known = [other for other in known if other.held.register != one.held.register]

    def _counted(self, fault: Label, back: Label) -> None:
        """Count a fault, apart from what most hits do, and continue at `back`."""

        def code() -> None:
            self._emit.bind(fault)
            self._emit.atomic_add(Address(offset=self._faults, near=True), 1)
            self._emit.jump(back)

        self._words.apart.put(self._emit.pool, code)

    def _statement(
        self,
        statement: Statement,
        words: ExpressionLowering,
        held: HeldEntry | None = None,
        known: Sequence[_Found] = (),
    ) -> None:
        emit = self._emit
        match statement:
            case Stop():
                raise NotLowered(statement, "a script does not stop the guest")
            case Update(Cell() | HashMap()) | Emit() | Put():
                self._ordinary(statement, words)
            case Update() | Get() | Set() | Modify() | Has() | Delete() | Length():
                target = map_of(statement)
                with noted(emit, f"@{target.name}" if target is not None else ""):
                    self._maps.lower(statement, words, held)
            case Assign(variable, value):
                self._assign(variable, value, words)
            case Copy(into, source):
                self._copy(into, source, words)
            case Cut(place, length):
                self._cut(place, length, words)
            case If():
                self._if(statement, words, known)
            case Loop():
                self._loop(statement)
            case Each():
                self._each(statement, words)
            case Break() | Continue():
                emit.jump(self._loops[-1][isinstance(statement, Break)])
            case Return():
                emit.jump(self._finish)

    def _assign(self, variable: Variable, value: Operand, words: ExpressionLowering) -> None:
        at = words.locals.registers.get(variable.name)
        if isinstance(value, StringLoad | BytesLoad | Slice | Literal):
            raise NotLowered(value, "a variable is a word")
        alone = isinstance(value, Binary) and value.left == variable and isinstance(value.right, Constant)
        may_stay = not self._quiet and may_fault(value)  # the variable, as it was before a fault
        if at is not None and not may_stay and (alone or variable not in nodes(value)):
            words.into(at, value)
            return
        with words.operand(value) as operand:
            if at is None:
                self._emit.store(self._emit.local(self._frame.offsets[variable.name]), operand)
            elif isinstance(operand, int):
                self._emit.constant(at, operand)
            else:
                self._emit.copy(at, operand)

    def _if(self, statement: If, words: ExpressionLowering, known: Sequence[_Found]) -> None:
        emit, otherwise, done = self._emit, Label(), Label()
        words.jump(statement.condition, False, otherwise)
        self._block(statement.then, [one.where(statement.condition) for one in known])
        if statement.otherwise:
            if not _leaves(statement.then):
                emit.jump(done)
            emit.bind(otherwise)
            self._block(statement.otherwise, known)
            emit.bind(done)
        else:
            emit.bind(otherwise)

    def _loop(self, statement: Loop) -> None:
        """Lower a loop. Its rounds are counted in a word of the stack or a register of its own."""
        emit = self._emit
        again, step, done, over = Label(), Label(), Label(), Label()
        with emit.pool.scratch() as left:
            emit.constant(left, statement.most)
            emit.bind(again)
            emit.branch(Comparison.EQ, left, 0, False, over)
            emit.binary(Arithmetic.SUB, left, left, 1, 64, False)
            self._loops.append((step, done))
            self._block(statement.body)
            self._loops.pop()
            emit.bind(step)
            self._block(statement.step)
            emit.jump(again)
            self._counted(over, self._finish)
            emit.bind(done)

    def _each(self, statement: Each, words: ExpressionLowering) -> None:
        """Lower a loop over the keys of a map. Its place is in the frame, so that the body has all registers."""
        emit = self._emit
        at = emit.local(self._frame.loops[id(statement)])
        table = self._maps.table(statement.map)
        again, step, done = Label(), Label(), Label()
        with emit.pool.scratch() as entry, emit.pool.scratch() as left:
            self._maps.first_entry(table, entry, left)
            emit.store(at, entry)
            emit.store(beyond(at, WORD), left)
        emit.bind(again)
        emit.branch(Comparison.EQ, MemoryValue(beyond(at, WORD)), 0, False, done)
        with emit.pool.scratch() as entry:
            emit.load(entry, MemoryValue(at))
            self._maps.taken(statement.map, entry, statement.key, statement.value, words, step)
        self._loops.append((step, done))
        self._block(statement.body)
        self._loops.pop()
        emit.bind(step)
        for offset, number in ((0, table.layout.entry_size), (WORD, -1)):
            with emit.pool.scratch() as word:
                emit.load(word, MemoryValue(beyond(at, offset)))
                emit.binary(Arithmetic.ADD, word, word, number & (1 << 64) - 1, 64, False)
                emit.store(beyond(at, offset), word)
        emit.jump(again)
        emit.bind(done)

    # buffers

    def _copy(self, into: Slice, source: Operand, words: ExpressionLowering) -> None:
        emit, place, size = self._emit, words.place(into.buffer, into.offset), size_of(source)
        if isinstance(source, BytesLoad):
            self._bytes(place, into.size, source, words)
            return
        if isinstance(source, Slice) and source.buffer == into.buffer and source.offset < into.offset:
            raise NotLowered(source, "a buffer is not moved up within itself")
        if isinstance(source, Slice | Literal):
            words.store_bytes(source, place)
        elif isinstance(source, StringLoad) and not source.mapped:
            words.store_text(source, place)
        else:
            with ExitStack() as stack:
                for index, word in enumerate(words.words(stack, source)):
                    emit.store(beyond(place, WORD * index), word)
        words.zero(beyond(place, size), into.size - size)

    def _bytes(self, place: Address, size: int, source: BytesLoad, words: ExpressionLowering) -> None:
        """Read bytes by words and then by bytes, none behind the length."""
        emit = self._emit
        whole, some, done = Label(), Label(), Label()
        words.zero(place, size)
        with self._three() as (at, to, left):
            words.into(at, source.address)
            if source.length is None:
                emit.constant(left, source.size)
            else:
                words.into(left, source.length)
                bounded = Label()
                emit.branch(Comparison.LE, left, source.size, False, bounded)
                emit.constant(left, source.size)
                emit.bind(bounded)
            emit.address(to, place)
            with words.using_probe_read(source), words.or_zeros(lambda: words.zero(place, size)) as fault:
                for step, label, other in ((WORD, whole, some), (1, some, done)):
                    emit.bind(label)
                    emit.branch(Comparison.LT, left, step, False, other)
                    with emit.pool.scratch(emit.probe_read_clobbers) as word:
                        emit.probe_read(word, at, step, fault, text=source.text)
                        emit.store(Address(to), word, step)
                        if source.text:
                            emit.branch_bits(word, 0xFF << 8 * (step - 1), False, done)
                    for register in (at, to):
                        emit.binary(Arithmetic.ADD, register, register, step, 64, False)
                    emit.binary(Arithmetic.SUB, left, left, step, 64, False)
                    emit.jump(label)
                emit.bind(done)

    def _cut(self, place: Slice, length: Operand, words: ExpressionLowering) -> None:
        emit, again, done = self._emit, Label(), Label()
        assert not isinstance(length, StringLoad | BytesLoad | Slice | Literal)
        with emit.pool.scratch() as at, emit.pool.scratch() as start, emit.pool.scratch() as byte:
            words.into(at, length)
            emit.address(start, words.place(place.buffer, place.offset))
            emit.bind(again)
            emit.branch(Comparison.GE, at, place.size, False, done)
            emit.binary(Arithmetic.ADD, byte, start, at, 64, False)
            emit.store(Address(byte), 0, 1)
            emit.binary(Arithmetic.ADD, at, at, 1, 64, False)
            emit.jump(again)
            emit.bind(done)

    @contextmanager
    def _three(self) -> Iterator[tuple[str, str, str]]:
        avoid = self._emit.probe_read_clobbers
        with (
            self._emit.pool.scratch(avoid) as one,
            self._emit.pool.scratch(avoid) as two,
            self._emit.pool.scratch(avoid) as three,
        ):
            yield one, two, three


def _leaves(block: Sequence[Statement]) -> bool:
    """Return whether nothing behind a block is reached from it."""
    return bool(block) and isinstance(block[-1], Break | Continue | Return)


@contextmanager
def variables_in_registers(emit: Emitter, facts: Facts, most: int) -> Iterator[dict[str, str]]:
    """Yield registers for the variables that are used most, by name."""
    found: dict[str, str] = {}
    avoid = emit.probe_read_clobbers if facts.dereferences else ()
    for name in facts.variables[:most]:
        try:
            found[name] = emit.pool.allocate(avoid)
        except TooManyRegisters:
            break
    yield found
    for register in found.values():
        emit.pool.free(register)
