"""Lower expressions to a codegen backend: to a word in a register, or to a jump on its value.

A register of the probed code is read where it is; a constant is an operand. Of two operands the one that needs more
registers is evaluated first (Sethi and Ullman), into the register of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache

from gdb_optprobe.handlers import lower_strings
from gdb_optprobe.handlers.ir import (
    MASK,
    WORD,
    And,
    Binary,
    BytesLoad,
    Choose,
    Clock,
    Constant,
    Convert,
    Expr,
    Literal,
    Load,
    Op,
    Operand,
    Or,
    PerCpuBase,
    Register,
    Slice,
    Statement,
    StringEquals,
    StringLoad,
    Unary,
    UnaryOp,
    children,
)
from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Emitter, Label, MemoryValue, noted
from gdb_optprobe.maps.aggregate import number

PROBE_READ = "probe_read"
_OF_SCRIPTS = {Op.UDIV: Op.DIV, Op.UMOD: Op.MOD, Op.LSHL: Op.SHL, Op.LSHR: Op.SHR}
UNMAPPED = "memory that may not be mapped is not read here"


class NotLowered(Exception):
    """Native code cannot do this node. why: the reason."""

    def __init__(self, node: Operand | Statement, why: str) -> None:
        super().__init__(f"{why}: {node}")
        self.node = node
        self.why = why


class ExpressionLowering:
    """Evaluates expressions with `emitter`.

    pc:      the name of the PC, and its value.
    fault:   the label that a fault jumps to.
    faulted: whether that label is used, so that it must be bound.
    """

    def __init__(self, emitter: Emitter, pc: tuple[str, int]) -> None:
        self._emitter = emitter
        self._pc = pc
        self._fault = Label()
        self.faulted = False

    @property
    def fault(self) -> Label:
        """Return the label of faults, and mark it as used."""
        self.faulted = True
        return self._fault

    def with_own_fault(self) -> ExpressionLowering:
        """Return one with another fault label."""
        return ExpressionLowering(self._emitter, self._pc)

    @contextmanager
    def word(self, node: Expr) -> Iterator[str]:
        """Yield a register that holds the word within the block. It must not be changed."""
        at = self._emitter.register(node.name) if isinstance(node, Register) else None
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

    def words(self, stack: ExitStack, node: Operand) -> list[str | int]:
        """Return the words of a part of a key or of a record, valid as long as `stack`."""
        if isinstance(node, Slice | Literal | BytesLoad):
            raise NotLowered(node, "native code has no buffers yet")
        if not isinstance(node, StringLoad):
            return [stack.enter_context(self.operand(node))]
        others = () if node.mapped else self._emitter.probe_read_clobbers
        made = [stack.enter_context(self._emitter.pool.scratch(others)) for _ in range(-(-node.size // WORD))]
        if node.mapped:
            with self.memory(node.address) as memory:
                read = lower_strings.read_array if node.whole else lower_strings.read_text
                read(self._emitter, made, memory, node.size)
        else:
            with self.using_probe_read(node), self.word(node.address) as at, noted(self._emitter, PROBE_READ):
                lower_strings.read_probed_text(self._emitter, made, at, node.size, node.whole, self.fault)
        return [*made]

    def store_text(self, node: StringLoad, into: Address) -> None:
        """Store the words of text that may not be mapped at `into`."""
        with self.using_probe_read(node), self.word(node.address) as at, noted(self._emitter, PROBE_READ):
            lower_strings.store_probed_text(self._emitter, into, at, node.size, node.whole, self.fault)

    def into(self, to: str, node: Expr) -> None:
        """Evaluate into a register of the pool."""
        emit = self._emitter
        match node:
            case Constant(value):
                emit.constant(to, value)
            case Register(name) if name == self._pc[0]:
                emit.constant(to, self._pc[1])
            case Register() | PerCpuBase() | Clock():
                self._leaf(to, node)
            case Load(address, size, signed, True):
                with self.memory(address) as memory:
                    emit.load(to, MemoryValue(memory, size, signed))
            case Load(address, size, signed):
                with self.using_probe_read(node):
                    at = self._first(to, address)
                    with noted(emit, f"{PROBE_READ} {node.source}".rstrip()):
                        emit.probe_read(to, at, size, self.fault)
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
            case And() | Or() | StringEquals():
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
                with self.using_probe_read(node), self.word(address) as at, noted(emit, PROBE_READ):
                    lower_strings.branch_on_probed_text(emit, at, literal, when, label, self.fault)
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
        at = self._emitter.register(node.name) if isinstance(node, Register) else None
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
