"""Lower reads of text to words in registers. All bytes after the first 0 byte become 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Emitter, Label, MemoryValue

MASK = (1 << 64) - 1
_LOW = 0x0101_0101_0101_0101
_HIGH = 0x8080_8080_8080_8080


def read_array(emit: Emitter, to: Sequence[str], at: Address, size: int) -> None:
    """Read text with `size` readable bytes, word by word."""
    done = Label()
    ends = [Label() for _ in to]
    with emit.pool.scratch() as zeros, emit.pool.scratch() as other:
        for index, word in enumerate(to):
            _load(emit, word, replace(at, offset=at.offset + 8 * index), min(8, size - 8 * index))
            find_zero(emit, zeros, word, other)
            emit.branch(Comparison.NE, zeros, 0, False, ends[index])
        emit.jump(done)
        for index, word in enumerate(to):
            emit.bind(ends[index])
            _cut(emit, word, zeros, other)
            for behind in to[index + 1 :]:
                emit.constant(behind, 0)
            emit.jump(done)
        emit.bind(done)


def find_zero(emit: Emitter, zeros: str, word: str, other: str) -> None:
    """Set `zeros`: its lowest bit is the highest of the first 0 byte of `word`; 0 if `word` has no such byte.

    Of a word w it is (w - 0x01…) & ~w & 0x80…, which may have more bits in bytes above. other: a register to work with.
    """
    emit.constant(other, -_LOW & MASK)
    emit.binary(Arithmetic.ADD, zeros, word, other, 64, False)
    emit.invert(other, word, 64, False)
    emit.binary(Arithmetic.AND, zeros, zeros, other, 64, False)
    emit.binary(Arithmetic.AND, zeros, zeros, _HIGH, 64, False)


def _cut(emit: Emitter, word: str, zeros: str, other: str) -> None:
    """Keep the bytes below the first 0. The lowest bit of `zeros` is the highest of that byte."""
    emit.negate(other, zeros, 64, False)
    emit.binary(Arithmetic.AND, zeros, zeros, other, 64, False)
    emit.binary(Arithmetic.SHR, zeros, zeros, 7, 64, False)
    emit.binary(Arithmetic.SUB, zeros, zeros, 1, 64, False)
    emit.binary(Arithmetic.AND, word, word, zeros, 64, False)


def _load(emit: Emitter, to: str, at: Address, size: int) -> None:
    """Load 1 to 8 bytes."""
    pieces = [8] if size == 8 else [piece for piece in (4, 2, 1) if size & piece]
    done = 0
    for piece in pieces:
        value = MemoryValue(replace(at, offset=at.offset + done), piece)
        if not done:
            emit.load(to, value)
        else:
            with emit.pool.scratch() as more:
                emit.load(more, value)
                emit.binary(Arithmetic.SHL, more, more, 8 * done, 64, False)
                emit.binary(Arithmetic.OR, to, to, more, 64, False)
        done += piece


def read_text(emit: Emitter, to: Sequence[str], at: Address, size: int) -> None:
    """Read mapped text byte by byte, none after the first 0."""
    for word in to:
        emit.constant(word, 0)
    done = Label()
    with emit.pool.scratch() as byte:
        for index in range(size):
            emit.load(byte, MemoryValue(replace(at, offset=at.offset + index), 1))
            emit.branch(Comparison.EQ, byte, 0, False, done)
            if index % 8:
                emit.binary(Arithmetic.SHL, byte, byte, 8 * (index % 8), 64, False)
            emit.binary(Arithmetic.OR, to[index // 8], to[index // 8], byte, 64, False)
    emit.bind(done)


def read_probed_text(emit: Emitter, to: Sequence[str], at: str, size: int, every: bool, fault: Label) -> None:
    """Read text that may not be mapped, word by word up to the first 0. every: all `size` bytes must be mapped."""
    ended = [Label() for _ in to]
    if every:
        emit.address(to[0], Address(at, size - 1))
        emit.probe_read(to[0], to[0], 1, fault)
    for index, word in enumerate(to):
        some = min(8, size - 8 * index)
        if index:
            emit.address(word, Address(at, 8 * index))
        emit.probe_read(word, word if index else at, some, fault, text=True)
        if some < 8:
            emit.extend(word, word, 8 * some, False)
        elif word != to[-1]:
            emit.branch_bits(word, 0xFF << 56, False, ended[index])
    done = Label()
    emit.jump(done)
    for index, word in enumerate(to[1:]):
        emit.bind(ended[index])
        emit.constant(word, 0)
    emit.bind(done)


def store_probed_text(emit: Emitter, into: Address, at: str, size: int, every: bool, fault: Label) -> None:
    """Read text as `read_probed_text` does, but store each word as soon as it is read."""
    count = -(-size // 8)
    ended, done = [Label() for _ in range(count)], Label()
    with emit.pool.scratch(emit.probe_read_clobbers) as word:
        if every:
            emit.address(word, Address(at, size - 1))
            emit.probe_read(word, word, 1, fault)
        for index in range(count):
            some = min(8, size - 8 * index)
            emit.address(word, Address(at, 8 * index))
            emit.probe_read(word, word, some, fault, text=True)
            if some < 8:
                emit.extend(word, word, 8 * some, False)
            emit.store(replace(into, offset=into.offset + 8 * index), word)
            if index < count - 1:
                emit.branch_bits(word, 0xFF << 56, False, ended[index])
        emit.jump(done)
        for index in range(1, count):
            emit.bind(ended[index - 1])
            emit.store(replace(into, offset=into.offset + 8 * index), 0)
        emit.bind(done)


def branch_on_probed_text(emit: Emitter, at: str, literal: bytes, when: bool, label: Label, fault: Label) -> None:
    """Jump to the label if text that may not be mapped is `literal` (`when` true), or is not (false).

    Bytes after the first difference need not be mapped.
    """
    differs, equal = Label(), Label()
    with emit.pool.scratch() as word, emit.pool.scratch(emit.probe_read_clobbers) as got:
        for index in range(0, len(literal), 8):
            wanted = literal[index : index + 8]
            short, on = Label(), Label()
            if index:
                emit.address(word, Address(at, index))
            emit.probe_read(word, word if index else at, len(wanted), short, text=True, got=got)
            if len(wanted) < 8:
                emit.extend(word, word, 8 * len(wanted), False)
            emit.branch(Comparison.NE, word, int.from_bytes(wanted, "little"), False, differs)
            emit.jump(on)
            emit.bind(short)
            _compare_some(emit, word, got, wanted, fault)
            emit.jump(differs)
            emit.bind(on)
    emit.jump(label if when else equal)
    emit.bind(differs)
    if not when:
        emit.jump(label)
    emit.bind(equal)


def _compare_some(emit: Emitter, word: str, got: str, wanted: bytes, fault: Label) -> None:
    """Fault if the `got` bytes that could be read are equal: the next one decides, and cannot be read."""
    emit.binary(Arithmetic.SHL, got, got, 3, 64, False)
    with emit.pool.scratch() as count:
        emit.constant(count, 64)
        emit.binary(Arithmetic.SUB, got, count, got, 64, False)
    emit.binary(Arithmetic.XOR, word, word, int.from_bytes(wanted, "little"), 64, False)
    emit.binary(Arithmetic.SHL, word, word, got, 64, False)
    emit.branch(Comparison.EQ, word, 0, False, fault)
