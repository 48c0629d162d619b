"""Compute what a program does at one hit: for the tiers that stop the guest, and to check native code against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.handlers import arithmetic
from gdb_optprobe.handlers.arithmetic import Fault
from gdb_optprobe.handlers.ir import (
    MASK,
    WORD,
    Action,
    And,
    Assign,
    Binary,
    Break,
    Buffer,
    Bytes,
    BytesLoad,
    Choose,
    Clock,
    Constant,
    ContainsText,
    Continue,
    Convert,
    Copy,
    Cut,
    Delete,
    Each,
    Emit,
    Expr,
    Get,
    Has,
    If,
    Length,
    Literal,
    Load,
    Loop,
    Map,
    Modify,
    Operand,
    Or,
    Part,
    PerCpuBase,
    Program,
    Put,
    Register,
    Return,
    SameText,
    Set,
    Slice,
    Statement,
    Stop,
    StringEquals,
    StringLoad,
    Unary,
    Update,
    Variable,
    operands,
)
from gdb_optprobe.maps import aggregate
from gdb_optprobe.maps.aggregate import Linear, LogLinear, Powers

ReadMemory = Callable[[int, int], bytes]


class MapContents(Protocol):
    """What a map of the session has by key: the words of an aggregate, or of what was stored."""

    def get(self, key: bytes) -> tuple[int, ...] | None:
        """Return the words of a key; None if it is not there."""

    def put(self, key: bytes, words: tuple[int, ...]) -> bool:
        """Set the words of a key. Return whether there was room; what finds none is counted."""

    def delete(self, key: bytes) -> bool:
        """Remove a key. Return whether it was there."""

    def all_keys(self) -> Sequence[bytes]:
        """Return all keys."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The state of a vCPU at the probed address, before the instruction there.

    read:       reads memory by address and size; raises Unreadable.
    per_cpu:    PerCpuBase on this CPU.
    clock:      Clock; None if it is not known, which is a fault.
    probe_read: as `read`, for memory that may not be mapped; without it `read` is used.
    maps:       the session's maps by name, which statements change.
    """

    registers: Mapping[str, int]
    read: ReadMemory
    per_cpu: int = 0
    clock: int | None = None
    probe_read: ReadMemory | None = None
    maps: Mapping[str, MapContents] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """An action that was carried out. value: for its aggregate. data: its key, or the record's fields."""

    action: Action
    value: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one hit does. held: the condition. faults: how many of condition and actions ended in a fault."""

    held: bool
    done: tuple[Done, ...] = ()
    faults: int = 0

    @property
    def stops(self) -> bool:
        return any(isinstance(done.action, Stop) for done in self.done)


def run(program: Program, hit: Hit) -> Outcome:
    """Compute what one hit does. Nothing is written but to `hit.maps`."""
    run = _Run(hit, program.quiet)
    try:
        held = program.condition is None or bool(run.word(program.condition))
    except Fault:
        return Outcome(held=False, faults=1)
    if not held:
        return Outcome(held=False)
    with suppress(_Leave):
        run.carry_out(program.actions)
    return Outcome(True, tuple(run.done), run.faults)


def evaluate(node: Expr, hit: Hit) -> int:
    """Compute the word of an expression. Raises Fault."""
    return _Run(hit, quiet=False).word(node)


def data(operand: Operand, hit: Hit) -> bytes:
    """Return the bytes of a part of a key or a record. Raises Fault."""
    return _Run(hit, quiet=False).data(operand)


class _Leave(Exception):
    """A Break, a Continue or a Return: `of` tells which."""

    def __init__(self, of: type[Break] | type[Continue] | type[Return]) -> None:
        super().__init__(of.__name__)
        self.of = of


@dataclass
class _Run:
    """One hit: its variables and buffers, and what it has done."""

    hit: Hit
    quiet: bool
    done: list[Done] = field(default_factory=list)
    faults: int = 0
    _words: dict[str, int] = field(default_factory=dict)
    _buffers: dict[str, bytearray] = field(default_factory=dict)

    # expressions

    def word(self, node: Expr) -> int:
        """Compute the word of an expression. Raises Fault."""
        hit = self.hit
        match node:
            case Constant(value):
                return value
            case Register(name):
                return hit.registers[name] & MASK
            case PerCpuBase():
                return hit.per_cpu & MASK
            case Clock():
                if hit.clock is None:
                    raise Fault("the clock is not known")
                return hit.clock & MASK
            case Load(address, size, signed, mapped):
                data = self._read(self.word(address), size, mapped, or_else=bytes(size))
                return arithmetic.extend(int.from_bytes(data, "little"), 8 * size, signed)
            case Unary(op, value, bits, signed):
                return arithmetic.unary(op, self.word(value), bits, signed)
            case Binary(op, left, right, bits, signed):
                return arithmetic.binary(op, self.word(left), self.word(right), bits, signed)
            case Convert(value, bits, signed):
                return arithmetic.extend(self.word(value), bits, signed)
            case And(left, right):
                return int(bool(self.word(left)) and bool(self.word(right)))
            case Or(left, right):
                return int(bool(self.word(left)) or bool(self.word(right)))
            case Choose(condition, yes, no):
                return self.word(yes if self.word(condition) else no)
            case StringEquals(address, literal, mapped):
                return int(self._text_equals(self.word(address), literal, mapped))
            case Variable(name):
                return self._words.get(name, 0)
            case Part(buffer, offset, size, signed, index):
                at = offset + size * (self.word(index) if index is not None else 0)
                part = self._bytes(buffer)[at : at + size] if at + size <= buffer.size else b""
                return arithmetic.extend(int.from_bytes(part, "little"), 8 * size, signed)
            case SameText(left, right, most):
                return int(self._text(left)[:most] == self._text(right)[:most])
            case ContainsText(text, needle):
                return int(self._text(needle) in self._text(text))

    def data(self, operand: Operand) -> bytes:
        """Return the bytes of an operand. Raises Fault."""
        match operand:
            case Slice() | Literal():
                return self._taken(operand)
            case StringLoad(address, size, mapped, whole):
                start = self.word(address)
                text = self._read(start, size, mapped, b"") if whole else self._up_to_zero(start, size, mapped)
                return text.partition(b"\0")[0].ljust(-(-size // WORD) * WORD, b"\0")
            case BytesLoad(address, size, mapped, length, text):
                start, least = self.word(address), size if length is None else min(size, self.word(length))
                found = self._up_to_zero(start, least, mapped) if text else self._read(start, least, mapped, b"")
                return found.ljust(-(-size // WORD) * WORD, b"\0")
            case _:
                return self.word(operand).to_bytes(WORD, "little")

    def _bytes(self, buffer: Buffer) -> bytearray:
        return self._buffers.setdefault(buffer.name, bytearray(buffer.size))

    def _taken(self, some: Bytes) -> bytes:
        if isinstance(some, Literal):
            return some.data
        return bytes(self._bytes(some.buffer)[some.offset : some.offset + some.size])

    def _text(self, some: Bytes) -> bytes:
        return self._taken(some).partition(b"\0")[0]

    def _text_equals(self, start: int, literal: bytes, mapped: bool) -> bool:
        try:
            return all(self._tried(start + at, 1, mapped)[0] == byte for at, byte in enumerate(literal))
        except Fault:
            if not self.quiet:
                raise
            return literal == b"\0"

    def _up_to_zero(self, start: int, size: int, mapped: bool) -> bytes:
        """Read byte by byte: what follows the 0 may not be mapped."""
        text = b""
        try:
            while len(text) < size and not text.endswith(b"\0"):
                text += self._tried(start + len(text), 1, mapped)
        except Fault:
            if not self.quiet:
                raise
            return b""
        return text

    def _read(self, address: int, size: int, mapped: bool, or_else: bytes) -> bytes:
        """Read memory; where a fault does not count, return `or_else` instead of it."""
        try:
            return self._tried(address, size, mapped) if size else b""
        except Fault:
            if not self.quiet:
                raise
            return or_else

    def _tried(self, address: int, size: int, mapped: bool) -> bytes:
        if address + size > MASK + 1:
            raise Fault("memory ends")
        read = self.hit.read if mapped or self.hit.probe_read is None else self.hit.probe_read
        try:
            return read(address, size)
        except Unreadable as error:
            raise Fault(error.message) from error

    # statements

    def carry_out(self, statements: Sequence[Statement]) -> None:
        """Carry out statements in their order; one that faults is left out. Raises _Leave."""
        for each in statements:
            try:
                self._carry_out(each)
            except Fault:
                self.faults += 1

    def _carry_out(self, statement: Statement) -> None:
        match statement:
            case Update(Map() as target, value, by):
                self._add(target, self._key(by), 0 if value is None else self.word(value))
            case Update() | Emit() | Put() | Stop():
                self.done.append(self._act(statement))
            case Assign(variable, value):
                self._words[variable.name] = self.word(value)
            case Copy(into, source):
                self._fill(into, self.data(source))
            case Cut(place, length):
                kept = min(self.word(length), place.size)
                self._fill(place, self._taken(place)[:kept])
            case If(condition, then, otherwise):
                self.carry_out(then if self.word(condition) else otherwise)
            case Loop(body, step, most):
                self._loop(body, step, most)
            case Each(target, key, value, body):
                self._each(target, key, value, body)
            case Break() | Continue() | Return():
                raise _Leave(type(statement))
            case Get(target, by, into):
                self._put_into(into, target, self._contents(target).get(self._key(by)))
            case Set(target, by, stored):
                at = self._key(by)
                self._contents(target).put(at, aggregate.decode(b"".join(map(self.data, stored))))
            case Modify(target, by, op, value, old, new):
                at, operand = self._key(by), self.word(value)
                before = (self._contents(target).get(at) or (0,))[0]
                after = arithmetic.binary(op, before, operand, 64, signed=False)
                self._contents(target).put(at, (after,))
                self._assign(old, before)
                self._assign(new, after)
            case Has(target, by, variable):
                self._assign(variable, int(self._contents(target).get(self._key(by)) is not None))
            case Delete(target, by, had):
                self._assign(had, int(self._contents(target).delete(self._key(by))))
            case Length(target, variable):
                self._assign(variable, len(self._contents(target).all_keys()))

    def _act(self, action: Action) -> Done:
        evaluated = [(operand, self.data(operand)) for operand in operands(action)]
        value = 0
        if isinstance(action, Update) and action.value is not None:
            value = int.from_bytes(evaluated.pop(0)[1], "little")
        kept = b"".join(each for _, each in evaluated)
        if isinstance(action, Emit) and action.target.stack:
            sp, room = (int.from_bytes(evaluated[at][1], "little") for at in (0, -1))
            if action.target.tried:
                words = self._stack(sp, action.target.stack)
                return Done(action, value, kept[:-WORD] + len(words).to_bytes(WORD, "little") + words)
            kept += self._tried(sp, WORD * min(room // WORD, action.target.stack), mapped=True)
        return Done(action, value, kept)

    def _stack(self, start: int, most: int) -> bytes:
        """Read words up to the first that is not mapped."""
        found = b""
        while len(found) < WORD * most:
            try:
                found += self._tried(start + len(found) & MASK, WORD, mapped=False)
            except Fault:
                break
        return found

    def _assign(self, variable: Variable | None, word: int) -> None:
        if variable is not None:
            self._words[variable.name] = word

    def _fill(self, into: Slice, source: bytes) -> None:
        self._bytes(into.buffer)[into.offset : into.offset + into.size] = source.ljust(into.size, b"\0")

    def _loop(self, body: Sequence[Statement], step: Sequence[Statement], most: int) -> None:
        for _ in range(most):
            if not self._round(body):
                return
            self.carry_out(step)
        self.faults += 1
        raise _Leave(Return)

    def _round(self, body: Sequence[Statement]) -> bool:
        """Carry out the body of a loop; return whether another round follows."""
        try:
            self.carry_out(body)
        except _Leave as leaving:
            if leaving.of is Return:
                raise
            return leaving.of is Continue
        return True

    def _each(self, target: Map, key: Slice | None, value: Variable | Slice | None, body: Sequence[Statement]) -> None:
        for found in self._contents(target).all_keys():
            if (words := self._contents(target).get(found)) is None:
                continue
            if key is not None:
                self._fill(key, found)
            if value is not None:
                self._put_into(value, target, words)
            if not self._round(body):
                return

    # maps

    def _contents(self, target: Map) -> MapContents:
        return self.hit.maps[target.name]

    def _key(self, by: Sequence[Operand]) -> bytes:
        return b"".join(map(self.data, by))

    def _add(self, target: Map, key: bytes, value: int) -> None:
        assert not isinstance(target.value, tuple)
        words = self._contents(target).get(key) or aggregate.initial(target.value)
        self._contents(target).put(key, aggregate.update(target.value, words, value))

    def _put_into(self, into: Variable | Slice, target: Map, words: tuple[int, ...] | None) -> None:
        if isinstance(into, Slice):
            self._fill(into, b"" if words is None else aggregate.encode(words))
        elif words is None:
            self._assign(into, 0)
        elif isinstance(target.value, tuple):
            self._assign(into, words[0])
        else:
            assert not isinstance(target.value, Powers | LogLinear | Linear)
            found = aggregate.value(target.value, words)
            self._assign(into, found & MASK if isinstance(found, int) else 0)
