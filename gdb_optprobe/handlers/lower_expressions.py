"""Lower expressions to a codegen backend: to a word in a register, or to a jump on its value.

A register of the probed code is read where it is; a constant is an operand. Of two operands the one that needs more
registers is evaluated first (Sethi and Ullman), into the register of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gdb_optprobe.handlers import lower_strings
from gdb_optprobe.handlers.ir import (
    MASK,
    WORD,
    And,
    Binary,
    Buffer,
    Bytes,
    BytesLoad,
    Choose,
    Clock,
    Constant,
    ContainsText,
    Convert,
    Expr,
    Literal,
    Load,
    Op,
    Operand,
    Or,
    Part,
    PerCpuBase,
    Register,
    SameText,
    Slice,
    Statement,
    StringEquals,
    StringLoad,
    Unary,
    UnaryOp,
    Variable,
    children,
)
from gdb_optprobe.isa.codegen import (
    Address,
    Arithmetic,
    Comparison,
    Emitter,
    Label,
    MemoryValue,
    RegisterPool,
    noted,
)
from gdb_optprobe.maps.aggregate import decode, number

PROBE_READ = "probe_read"
_OF_SCRIPTS = {Op.UDIV: Op.DIV, Op.UMOD: Op.MOD, Op.LSHL: Op.SHL, Op.LSHR: Op.SHR}
UNMAPPED = "memory that may not be mapped is not read here"


class NotLowered(Exception):
    """Native code cannot do this node. why: the reason."""

    def __init__(self, node: Operand | Statement, why: str) -> None:
        super().__init__(f"{why}: {node}")
        self.node = node
        self.why = why


@dataclass
class Locals:
    """Where the variables and buffers of a hit are.

    registers, offsets: of variables, by name; offsets in the frame. buffers: their offsets, by name.
    quiet: see ir.py, faults. held: registers of words that are computed once for all, or their offsets in the frame.
    """

    quiet: bool = False
    registers: dict[str, str] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, int] = field(default_factory=dict)
    held: dict[Expr, str | int] = field(default_factory=dict)


class Apart:
    """Code that few hits run: it is emitted behind that of all hits."""

    def __init__(self) -> None:
        self._parts: list[tuple[frozenset[str], Callable[[], None]]] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def put(self, pool: RegisterPool, emit: Callable[[], None]) -> None:
        """Put off what `emit` emits. The registers in use now are in use there."""
        self._parts.append((pool.taken, emit))

    def emit(self, pool: RegisterPool) -> None:
        """Emit all that was put off, and what that puts off itself."""
        while self._parts:
            taken, emit = self._parts.pop(0)
            with pool.holding(taken):
                emit()


class ExpressionLowering:
    """Evaluates expressions with `emitter`.

    pc:      the name of the PC, and its value.
    fault:   the label that a fault jumps to.
    faulted: whether that label is used, so that it must be bound.
    locals:  where variables are. apart: for code that few hits run, which must be emitted too.
    """

    def __init__(
        self, emitter: Emitter, pc: tuple[str, int], places: Locals | None = None, apart: Apart | None = None
    ) -> None:
        self._emitter = emitter
        self._pc = pc
        self._fault = Label()
        self.faulted = False
        self.locals = places if places is not None else Locals()
        self.apart = apart if apart is not None else Apart()

    @property
    def fault(self) -> Label:
        """Return the label of faults, and mark it as used."""
        self.faulted = True
        return self._fault

    def with_own_fault(self, held: Mapping[Expr, str] | None = None) -> ExpressionLowering:
        """Return one with another fault label. held: registers of words that it has beside these."""
        places = replace(self.locals, held={**self.locals.held, **held}) if held else self.locals
        return ExpressionLowering(self._emitter, self._pc, places, self.apart)

    @contextmanager
    def or_zeros(self, fault: Callable[[], None]) -> Iterator[Label]:
        """Yield the label that a fault within the block jumps to. fault: emits what a quiet one does instead."""
        if not self.locals.quiet:
            yield self.fault
            return
        label, back = Label(), Label()

        def instead() -> None:
            self._emitter.bind(label)
            fault()
            self._emitter.jump(back)

        yield label
        self.apart.put(self._emitter.pool, instead)
        self._emitter.bind(back)

    def place(self, buffer: Buffer, offset: int = 0) -> Address:
        """Return the address of what is in a buffer."""
        return self._emitter.local(self.locals.buffers[buffer.name] + offset)

    def _where(self, node: Expr) -> str | None:
        """Return the register that already holds a word; None if none does."""
        if isinstance(node, Variable):
            return self.locals.registers.get(node.name)
        if self.locals.held and isinstance(held := self.locals.held.get(node), str):
            return held
        return self._emitter.register(node.name) if isinstance(node, Register) else None

    def _in_memory(self, node: Variable | Part) -> MemoryValue:
        """Return where a word is that is in the frame."""
        if isinstance(node, Variable):
            return MemoryValue(self._emitter.local(self.locals.offsets[node.name]))
        return MemoryValue(self.place(node.buffer, node.offset), node.size, node.signed)

    @contextmanager
    def word(self, node: Expr) -> Iterator[str]:
        """Yield a register that holds the word within the block. It must not be changed."""
        at = self._where(node)
        if at is not None:
            yield at
            return
        with self._emitter.pool.scratch() as to:
            self.into(to, node)
            yield to

    @contextmanager
    def operand(self, node: Expr) -> Iterator[str | int]:
        """Yield a register or a constant that holds the word within the block."""
        if isinstance(node, Constant):
            yield node.value
            return
        with self.word(node) as register:
            yield register

    @contextmanager
    def compared(self, node: Expr) -> Iterator[str | MemoryValue]:
        """Yield a register or a place in memory that holds the word within the block."""
        if isinstance(node, Load) and node.mapped:
            with self.memory(node.address) as memory:
                yield MemoryValue(memory, node.size, node.signed)
            return
        if self._where(node) is None and (isinstance(node, Variable) or (isinstance(node, Part) and not node.index)):
            yield self._in_memory(node)
            return
        with self.word(node) as register:
            yield register

    @contextmanager
    def memory(self, address: Expr) -> Iterator[Address]:
        """Yield an addressing mode for an address."""
        terms = list(_terms(address))
        offset = sum(term.value for term in terms if isinstance(term, Constant)) & MASK
        others = [term for term in terms if not isinstance(term, Constant)]
        per_cpu = PerCpuBase() in others
        if per_cpu:
            others.remove(PerCpuBase())
        if not others:
            yield Address(None, number(offset, True), per_cpu=per_cpu)
            return
        base = others[0]
        for other in others[1:]:
            base = Binary(Op.ADD, base, other, 64, False)
        with self.word(base) as register:
            yield Address(register, number(offset, True), per_cpu=per_cpu)

    def assign(self, variable: Variable, register: str) -> None:
        """Give a variable the word of a register."""
        at = self.locals.registers.get(variable.name)
        if at is None:
            self._emitter.store(self._emitter.local(self.locals.offsets[variable.name]), register)
        else:
            self._emitter.copy(at, register)

    def operate(self, to: str, op: Op, left: str, right: str | int) -> None:
        """Compute `left op right` of 64 bits, unsigned."""
        self._operate(to, op, left, right, 64, signed=False)

    def words(self, stack: ExitStack, node: Operand) -> list[str | int]:
        """Return the words of a part of a key or of a record, valid as long as `stack`."""
        if isinstance(node, Literal):
            return [*literal_words(node)]
        if isinstance(node, Slice):
            found = [stack.enter_context(self._emitter.pool.scratch()) for _ in range(node.size // WORD)]
            for index, word in enumerate(found):
                self._emitter.load(word, MemoryValue(self.place(node.buffer, node.offset + WORD * index)))
            return [*found]
        if isinstance(node, BytesLoad):
            raise NotLowered(node, "such bytes are read into a buffer only")
        if not isinstance(node, StringLoad):
            return [stack.enter_context(self.operand(node))]
        others = () if node.mapped else self._emitter.probe_read_clobbers
        made = [stack.enter_context(self._emitter.pool.scratch(others)) for _ in range(-(-node.size // WORD))]
        if node.mapped:
            with self.memory(node.address) as memory:
                read = lower_strings.read_array if node.whole else lower_strings.read_text
                read(self._emitter, made, memory, node.size)
        else:
            with (
                self.using_probe_read(node),
                self.word(node.address) as at,
                noted(self._emitter, PROBE_READ),
                self.or_zeros(lambda: self._zero(made)) as fault,
            ):
                lower_strings.read_probed_text(self._emitter, made, at, node.size, node.whole, fault)
        return [*made]

    def _zero(self, registers: Sequence[str]) -> None:
        for register in registers:
            self._emitter.constant(register, 0)

    def zero(self, into: Address, size: int) -> None:
        """Store zeros: size bytes, a multiple of 8."""
        for at in range(0, size, WORD):
            self._emitter.store(beyond(into, at), 0)

    def store_bytes(self, node: Slice | Literal, into: Address) -> None:
        """Store the bytes of a slice or a literal at `into`."""
        emit = self._emitter
        if isinstance(node, Literal):
            for index, word in enumerate(literal_words(node)):
                emit.store(beyond(into, WORD * index), word)
            return
        with emit.pool.scratch() as copied:
            for at in range(0, node.size, WORD):
                emit.load(copied, MemoryValue(self.place(node.buffer, node.offset + at)))
                emit.store(beyond(into, at), copied)

    def store_text(self, node: StringLoad, into: Address) -> None:
        """Store the words of text that may not be mapped at `into`."""
        with self.using_probe_read(node), self.word(node.address) as at, noted(self._emitter, PROBE_READ):
            size = -(-node.size // WORD) * WORD
            with self.or_zeros(lambda: self.zero(into, size)) as fault:
                lower_strings.store_probed_text(self._emitter, into, at, node.size, node.whole, fault)

    def into(self, to: str, node: Expr) -> None:
        """Evaluate into a register of the pool."""
        emit, held = self._emitter, self.locals.held.get(node) if self.locals.held else None
        match node:
            case _ if isinstance(held, str):
                emit.copy(to, held)
            case _ if held is not None:
                emit.load(to, MemoryValue(emit.local(held)))
            case Constant(value):
                emit.constant(to, value)
            case Register(name) if name == self._pc[0]:
                emit.constant(to, self._pc[1])
            case Register() | PerCpuBase() | Clock():
                self._leaf(to, node)
            case Binary(Op.ADD, Clock(), Constant(more), 64) if Clock() not in self.locals.held:
                emit.clock(to, more)
            case Load(address, size, signed, True):
                with self.memory(address) as memory:
                    emit.load(to, MemoryValue(memory, size, signed))
            case Load(address, size, signed):
                with self.using_probe_read(node):
                    at = self._first(to, address)
                    what = f"{PROBE_READ} {node.source}".rstrip()
                    with noted(emit, what), self.or_zeros(lambda: emit.constant(to, 0)) as fault:
                        emit.probe_read(to, at, size, fault)
                        if size < WORD:
                            emit.extend(to, to, 8 * size, signed)
            case Unary(op, value, bits, signed):
                verb = emit.negate if op is UnaryOp.NEGATE else emit.invert
                verb(to, self._first(to, value), bits, signed)
            case Convert(value, bits, signed):
                emit.extend(to, self._first(to, value), bits, signed)
            case Binary(op, left, right, bits, signed) if not op.compares:
                self._binary(to, op, left, right, bits, signed)
            case Binary(op, left, right, _, signed):
                if isinstance(left, Constant):
                    left, right, op = right, left, Op[Comparison[op.name].turned.name]
                with self._both(left, right) as (one, other):
                    emit.compare(Comparison[op.name], to, one, other, signed)
            case Variable(name) if name in self.locals.registers:
                emit.copy(to, self.locals.registers[name])
            case Variable() | Part(index=None):
                emit.load(to, self._in_memory(node))
            case Part():
                self._indexed(to, node)
            case And() | Or() | StringEquals() | SameText() | ContainsText():
                self._choose(to, node, Constant(1), Constant(0))
            case Choose(condition, yes, no):
                self._choose(to, condition, yes, no)

    def jump(self, node: Expr, when: bool, label: Label) -> None:
        """Jump to the label if the word is not 0 (`when` true) or is 0 (false); else fall through."""
        emit = self._emitter
        match node:
            case Constant(value):
                if bool(value) is when:
                    emit.jump(label)
            case And(left, right) | Or(left, right):
                decides = isinstance(node, Or)  # the value of the left that decides alone
                end = Label()
                self.jump(left, decides, label if when is decides else end)
                self.jump(right, when, label)
                emit.bind(end)
            case Choose(condition, yes, no):
                otherwise, end = Label(), Label()
                self.jump(condition, False, otherwise)
                self.jump(yes, when, label)
                emit.jump(end)
                emit.bind(otherwise)
                self.jump(no, when, label)
                emit.bind(end)
            case Binary(Op.EQ | Op.NE as op, left, Constant(0)):
                self.jump(left, when is (op is Op.NE), label)
            case Binary(op, left, right, _, signed) if op.compares:
                self._compare(Comparison[op.name], left, right, signed, when, label)
            case Binary(Op.AND, left, Constant(mask)):
                with self.compared(left) as word:
                    emit.branch_bits(word, mask, when, label)
            case Convert(value, bits):
                with self.compared(value) as word:
                    emit.branch_bits(word, (1 << bits) - 1, when, label)
            case StringEquals(address, literal, True):
                self._text(address, literal, when, label)
            case StringEquals(address, literal):
                end = Label()
                unread = label if (literal == b"\0") is when else end
                with self.using_probe_read(node), self.word(address) as at, noted(emit, PROBE_READ):
                    fault = unread if self.locals.quiet else self.fault
                    lower_strings.branch_on_probed_text(emit, at, literal, when, label, fault)
                emit.bind(end)
            case SameText(left, right, most):
                self._same_text(left, right, most, when, label)
            case ContainsText(text, needle):
                self._contains(node, text, needle, when, label)
            case _:
                with self.compared(node) as word:
                    emit.branch(Comparison.NE if when else Comparison.EQ, word, 0, False, label)

    @contextmanager
    def using_probe_read(self, node: Operand) -> Iterator[None]:
        """Raise NotLowered if the block needs probe_read for `node` and the guest has none."""
        try:
            yield
        except KeyError as error:
            raise NotLowered(node, UNMAPPED) from error

    def _leaf(self, to: str, node: Register | PerCpuBase | Clock) -> None:
        try:
            match node:
                case Register(name):
                    self._emitter.read(to, name)
                case PerCpuBase():
                    self._emitter.per_cpu_base(to)
                case Clock():
                    self._emitter.clock(to)
        except KeyError as error:
            raise NotLowered(node, "what native code cannot read here") from error

    def _first(self, to: str, node: Expr) -> str:
        """Return the register that holds the word: evaluate it into `to` unless one does already."""
        at = self._where(node)
        if at is not None:
            return at
        self.into(to, node)
        return to

    def _binary(self, to: str, op: Op, left: Expr, right: Expr, bits: int, signed: bool) -> None:
        other: str | int
        with ExitStack() as stack:
            if isinstance(right, Constant):
                one, other = self._first(to, left), right.value
            elif registers_needed(right) > registers_needed(left):
                other = self._first(to, right)
                one = stack.enter_context(self.word(left))
            else:
                one = self._first(to, left)
                other = stack.enter_context(self.word(right))
            self._operate(to, op, one, other, bits, signed)

    def _operate(self, to: str, op: Op, left: str, right: str | int, bits: int, signed: bool) -> None:
        if op in _OF_SCRIPTS:
            self._operate_unsigned(to, op, left, right)
        elif op is Op.UMULH:
            self._emitter.multiply_high(to, left, right)
        elif op not in (Op.DIV, Op.MOD):
            self._emitter.binary(Arithmetic[op.name], to, left, right, bits, signed)
        elif isinstance(right, int):
            self._divide_by_constant(to, op, left, right, bits, signed)
        else:
            self._divide(to, op, left, right, bits, signed)

    def _operate_unsigned(self, to: str, op: Op, left: str, right: str | int) -> None:
        """Lower an operation of scripts: nothing faults, and no count is too large."""
        emit, plain = self._emitter, _OF_SCRIPTS[op]
        if isinstance(right, int) and op in (Op.LSHL, Op.LSHR):
            emit.binary(Arithmetic[plain.name], to, left, right % 64, 64, False)
        elif isinstance(right, int) and right:
            self._divide_by_constant(to, plain, left, right, 64, False)
        elif isinstance(right, int):
            emit.copy(to, left) if op is Op.UMOD else emit.constant(to, 0)
        elif op in (Op.LSHL, Op.LSHR):
            with emit.pool.scratch() as count:
                emit.binary(Arithmetic.AND, count, right, 63, 64, False)
                emit.binary(Arithmetic[plain.name], to, left, count, 64, False)
        else:
            self._divide_or(to, plain, left, right)

    def _divide_or(self, to: str, op: Op, left: str, right: str) -> None:
        """Divide unsigned words; by 0 the quotient is 0, and the remainder `left`."""
        emit, zero, done = self._emitter, Label(), Label()
        emit.branch(Comparison.EQ, right, 0, False, zero)
        emit.binary(Arithmetic[op.name], to, left, right, 64, False)
        emit.jump(done)
        emit.bind(zero)
        if op is Op.MOD:
            emit.copy(to, left)
        else:
            emit.constant(to, 0)
        emit.bind(done)

    def _divide(self, to: str, op: Op, left: str, right: str, bits: int, signed: bool) -> None:
        """Divide. A divisor of -1 is treated apart: if the quotient overflows, processors trap or give any result."""
        emit = self._emitter
        emit.branch(Comparison.EQ, right, 0, False, self.fault)
        if not signed:
            emit.binary(Arithmetic[op.name], to, left, right, bits, signed)
            return
        minus, done = Label(), Label()
        emit.branch(Comparison.EQ, right, MASK, False, minus)
        emit.binary(Arithmetic[op.name], to, left, right, bits, signed)
        emit.jump(done)
        emit.bind(minus)
        self._divide_by_constant(to, op, left, MASK, bits, signed)
        emit.bind(done)

    def _divide_by_constant(self, to: str, op: Op, left: str, right: int, bits: int, signed: bool) -> None:
        emit = self._emitter
        if right == 0:
            emit.jump(self.fault)
        elif signed and right == MASK and op is Op.DIV:
            emit.negate(to, left, bits, signed)
        elif signed and right == MASK:
            emit.constant(to, 0)
        elif not signed and right & right - 1 == 0:
            if op is Op.DIV:
                emit.binary(Arithmetic.SHR, to, left, right.bit_length() - 1, bits, signed)
            else:
                emit.binary(Arithmetic.AND, to, left, right - 1, bits, signed)
        else:
            emit.binary(Arithmetic[op.name], to, left, right, bits, signed)

    def _indexed(self, to: str, node: Part) -> None:
        """Load an integer by its index; 0 if it is beyond the buffer."""
        assert node.index is not None
        emit, past, done = self._emitter, Label(), Label()
        with emit.pool.scratch() as index, emit.pool.scratch() as at:
            self.into(index, node.index)
            emit.branch(Comparison.GE, index, (node.buffer.size - node.offset) // node.size, False, past)
            emit.binary(Arithmetic.MUL, index, index, node.size, 64, False)
            emit.address(at, self.place(node.buffer, node.offset))
            emit.binary(Arithmetic.ADD, at, at, index, 64, False)
            emit.load(to, MemoryValue(Address(at), node.size, node.signed))
            emit.jump(done)
            emit.bind(past)
            emit.constant(to, 0)
            emit.bind(done)

    def _same_text(self, left: Bytes, right: Bytes, most: int | None, when: bool, label: Label) -> None:
        """Compare word by word; of words that differ, the bytes up to the first 0 of one decide."""
        emit, differs, equal = self._emitter, Label(), Label()
        if isinstance(left, Literal):
            left, right = right, left
        size = max(_size(left), _size(right))
        size = size if most is None else min(most, size)
        with emit.pool.scratch() as one, emit.pool.scratch() as other, emit.pool.scratch() as zeros:
            for at in range(0, size, WORD):
                self._word_of(one, left, at)
                self._word_of(other, right, at)
                kept = min(WORD, size - at)
                if kept < WORD:
                    for word in (one, other):
                        emit.extend(word, word, 8 * kept, False)
                with emit.pool.scratch() as work:
                    lower_strings.find_zero(emit, zeros, one, work)
                emit.binary(Arithmetic.XOR, other, other, one, 64, False)
                same = Label()
                emit.branch(Comparison.EQ, other, 0, False, same)
                # If a text ended here, only what is up to its end may not differ.
                emit.branch(Comparison.EQ, zeros, 0, False, differs)
                emit.binary(Arithmetic.SUB, one, zeros, 1, 64, False)
                emit.binary(Arithmetic.XOR, zeros, zeros, one, 64, False)
                emit.binary(Arithmetic.AND, other, other, zeros, 64, False)
                emit.branch(Comparison.NE, other, 0, False, differs)
                emit.jump(equal)
                emit.bind(same)
                emit.branch(Comparison.NE, zeros, 0, False, equal)
        emit.bind(equal)
        if when:
            emit.jump(label)
            emit.bind(differs)
            return
        after = Label()
        emit.jump(after)
        emit.bind(differs)
        emit.jump(label)
        emit.bind(after)

    def _contains(self, node: ContainsText, text: Bytes, needle: Bytes, when: bool, label: Label) -> None:
        """Try every place of a text, byte by byte, up to its first 0."""
        if isinstance(text, Literal):
            raise NotLowered(node, "native code searches in a text of the hit alone")
        emit, wanted = self._emitter, text_of(needle) if isinstance(needle, Literal) else None
        again, elsewhere, found, missing = (Label() for _ in range(4))
        with emit.pool.scratch() as at, emit.pool.scratch() as end:
            emit.address(at, self.place(text.buffer, text.offset))
            emit.address(end, self.place(text.buffer, text.offset + text.size))
            emit.bind(again)
            if wanted is not None:
                for index, byte in enumerate(wanted):
                    self._unless_equal(at, index, end, byte, elsewhere)
            else:
                assert isinstance(needle, Slice)
                self._compare_at(at, end, needle, elsewhere, found)
            emit.jump(found)
            emit.bind(elsewhere)
            emit.branch(Comparison.EQ, MemoryValue(Address(at), 1), 0, False, missing)
            emit.binary(Arithmetic.ADD, at, at, 1, 64, False)
            emit.branch(Comparison.LT, at, end, False, again)
        emit.bind(missing)
        if not when:
            emit.jump(label)
            emit.bind(found)
            return
        after = Label()
        emit.jump(after)
        emit.bind(found)
        emit.jump(label)
        emit.bind(after)

    def _unless_equal(self, at: str, index: int, end: str, byte: int, label: Label) -> None:
        """Jump to the label if the byte `index` bytes behind `at` is another, or behind the end."""
        emit = self._emitter
        with emit.pool.scratch() as place:
            emit.address(place, Address(at, index))
            emit.branch(Comparison.GE, place, end, False, label)
        emit.branch(Comparison.NE, MemoryValue(Address(at, index), 1), byte, False, label)

    def _compare_at(self, at: str, end: str, needle: Slice, elsewhere: Label, found: Label) -> None:
        """Jump to `elsewhere` if a text is not at `at`, or to `found`; fall through if it fills its slice."""
        emit, look, done = self._emitter, Label(), Label()
        with emit.pool.scratch() as index, emit.pool.scratch() as place, emit.pool.scratch() as byte:
            emit.constant(index, 0)
            emit.bind(look)
            emit.branch(Comparison.GE, index, needle.size, False, done)
            emit.address(place, self.place(needle.buffer, needle.offset))
            emit.binary(Arithmetic.ADD, place, place, index, 64, False)
            emit.load(byte, MemoryValue(Address(place), 1))
            emit.branch(Comparison.EQ, byte, 0, False, found)
            emit.binary(Arithmetic.ADD, place, at, index, 64, False)
            emit.branch(Comparison.GE, place, end, False, elsewhere)
            emit.load(place, MemoryValue(Address(place), 1))
            emit.branch(Comparison.NE, place, byte, False, elsewhere)
            emit.binary(Arithmetic.ADD, index, index, 1, 64, False)
            emit.jump(look)
            emit.bind(done)

    def _word_of(self, to: str, text: Bytes, at: int) -> None:
        """Load a word of a text; 0 behind its bytes."""
        if at >= _size(text):
            self._emitter.constant(to, 0)
        elif isinstance(text, Literal):
            self._emitter.constant(to, literal_words(text)[at // WORD])
        else:
            self._emitter.load(to, MemoryValue(self.place(text.buffer, text.offset + at)))

    def _choose(self, to: str, condition: Expr, yes: Expr, no: Expr) -> None:
        otherwise, done = Label(), Label()
        self.jump(condition, False, otherwise)
        self.into(to, yes)
        self._emitter.jump(done)
        self._emitter.bind(otherwise)
        self.into(to, no)
        self._emitter.bind(done)

    def _compare(self, test: Comparison, left: Expr, right: Expr, signed: bool, when: bool, label: Label) -> None:
        if isinstance(left, Constant):
            left, right, test = right, left, test.turned
        with ExitStack() as stack:
            if registers_needed(right) > registers_needed(left):
                other = stack.enter_context(self.operand(right))
                one = stack.enter_context(self.compared(left))
            else:
                one = stack.enter_context(self.compared(left))
                other = stack.enter_context(self.operand(right))
            self._emitter.branch(test if when else test.opposite, one, other, signed, label)

    @contextmanager
    def _both(self, left: Expr, right: Expr) -> Iterator[tuple[str, str | int]]:
        with ExitStack() as stack:
            if registers_needed(right) > registers_needed(left):
                other = stack.enter_context(self.operand(right))
                yield stack.enter_context(self.word(left)), other
            else:
                one = stack.enter_context(self.word(left))
                yield one, stack.enter_context(self.operand(right))

    def _text(self, address: Expr, literal: bytes, when: bool, label: Label) -> None:
        differs = Label()
        with self.memory(address) as memory:
            for at, byte in enumerate(literal):
                place = Address(memory.base, memory.offset + at, per_cpu=memory.per_cpu)
                self._emitter.branch(Comparison.NE, MemoryValue(place, 1), byte, False, differs if when else label)
        if when:
            self._emitter.jump(label)
        self._emitter.bind(differs)


def literal_words(literal: Literal) -> tuple[int, ...]:
    """Return the words of constant bytes."""
    return decode(literal.data)


def beyond(at: Address, offset: int) -> Address:
    """Return an address `offset` bytes further on."""
    return Address(at.base, at.offset + offset, at.index, at.per_cpu, at.near)


def text_of(literal: Literal) -> bytes:
    """Return the bytes before the first 0."""
    return literal.data.partition(b"\0")[0]


def _size(some: Bytes) -> int:
    return len(some.data) if isinstance(some, Literal) else some.size


def _terms(node: Expr) -> Iterator[Expr]:
    """Yield the summands of an address."""
    if isinstance(node, Binary) and node.op is Op.ADD and node.bits == 64:
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


@lru_cache(4096)
def registers_needed(node: Expr) -> int:
    """Return about how many registers evaluating a node takes."""
    match node:
        case Constant() | Register():
            return 0
        case Binary(_, left, right):
            one, other = registers_needed(left), registers_needed(right)
            return max(one, other, 1) if one != other else one + 1
        case _:
            return max((1, *(registers_needed(child) for child in children(node))))
