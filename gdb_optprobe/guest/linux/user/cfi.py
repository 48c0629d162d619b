"""Call frame information of a program, .eh_frame: how a frame's caller is found. Pure: bytes in.

    .eh_frame ─► CIE: common to its FDEs ─► FDE: code from … to …, and the changes at its instructions
    place ─► its FDE ─► instructions up to there ─► Rules: the frame's address (CFA), and where registers are

DWARF 4, 6.4; Linux Standard Base, 10.6 (Exception Frames). Every number is checked.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import le

from gdb_optprobe.budget import OverBudget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user import leb128

MASK = (1 << 64) - 1
DEEPEST = 64
# Limits (budget.py), and what the largest of Debian's programs and libraries have.
LARGEST_COMMON, LONGEST_NAME, LARGEST_PROGRAM = 1 << 12, 16, 1 << 13
"""Bytes of a CIE: 24; of its augmentation string: 4; of an FDE's instructions: 563."""
LARGEST_EXPRESSION = 1 << 8
"""Bytes of a DWARF expression: 20. Each is a step, and a frame may have as many expressions as registers."""
MOST_FRAMES, MOST_COMMONS = 1 << 21, 1 << 12
"""FDEs: 140,000; CIEs: 300. Code of those beyond the limit is reported as unknown."""
MOST_REGISTERS = 256
_64_BIT = 0xFFFFFFFF
_FORMATS = {2: (2, False), 3: (4, False), 4: (8, False), 10: (2, True), 11: (4, True), 12: (8, True)}
"""DW_EH_PE_udata2 … DW_EH_PE_sdata8: size, and whether it has a sign."""
_OMITTED, _RELATIVE = 0xFF, 0x10
_QUICK = {
    (encoding | relative, word): struct.Struct(f"<{2 * letter}")
    for word in (4, 8)
    for encoding, letter in {0: "I" if word == 4 else "Q", 3: "I", 4: "Q", 11: "i", 12: "q"}.items()
    for relative in (0, _RELATIVE)
}
"""Address and size of an FDE in one piece, by encoding and bytes of an address: what compilers write."""
_SLOW = (None, 0)


class Damaged(OptprobeError):
    """The section has data that no compiler writes."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The register is saved in memory, so far from the CFA; whole: it is that address itself."""

    offset: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class InRegister:
    """The register is in another register."""

    number: int


@dataclass(frozen=True, slots=True)
class Expression:
    """The register is saved at an expression's value; whole: it is that value itself."""

    expression: bytes
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Undefined:
    """The register is undefined. An undefined return address means that there is no caller."""


Rule = Saved | InRegister | Expression | Undefined


@dataclass(frozen=True, slots=True)
class Rules:
    """cfa: a register's number and what is added to it, or an expression. registers: by number; others are unchanged.

    back: the number of the return address. interrupted: a signal interrupted the caller, which was not calling.
    """

    cfa: tuple[int, int] | bytes
    registers: Mapping[int, Rule]
    back: int
    interrupted: bool = False


class _Bytes:
    """A reader from the front. Raises Damaged."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > self.end:
            raise Damaged("the description of frames ends too soon")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def leb(self, signed: bool = False) -> int:
        if (found := leb128.number(self.data, self.at, self.end, signed)) is None:
            raise Damaged("a number does not end")
        value, self.at = found
        return value

    def string(self, longest: int) -> bytes:
        end = self.data.find(b"\0", self.at, min(self.end, self.at + longest + 1))
        if end < 0:
            raise Damaged("a name does not end")
        return self.take(end + 1 - self.at)[:-1]

    def block(self) -> bytes:
        return self.take(self.leb())


@dataclass(frozen=True, slots=True)
class _Cie:
    """A CIE. code, data: units of distances. encoding: of addresses. augmented: its FDEs have a size there.
    first: start and end of its instructions, in the section.
    """

    code: int
    data: int
    back: int
    encoding: int
    augmented: bool
    interrupted: bool
    first: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Fde:
    """An FDE: code from start to end. program: start and end of its instructions, in the section."""

    start: int
    end: int
    common: _Cie
    program: tuple[int, int]


@dataclass(slots=True)
class _Index:
    """FDEs in columns: starts and ends of their code, and their offsets in the section, sizes first.

    cut: the section has more than MOST_FRAMES.
    """

    starts: array[int]
    ends: array[int]
    places: array[int]
    cut: bool

    def in_order(self) -> _Index:
        """Return the index sorted by the start of code."""
        if all(map(le, self.starts, self.starts[1:])):
            return self
        order = sorted(range(len(self.starts)), key=self.starts.__getitem__)
        starts, ends, places = (
            array("Q", map(column.__getitem__, order)) for column in (self.starts, self.ends, self.places)
        )
        return _Index(starts, ends, places, self.cut)


@dataclass(frozen=True)
class CallFrames:
    """The section. data: of .eh_frame, which is at `address`; word: bytes of an address. It may be empty."""

    data: bytes = b""
    address: int = 0
    word: int = 8

    def rules(self, address: int) -> Rules | None:
        """Return the rules before the instruction at `address`; None where there are none. Raises Damaged, OverBudget.
        """
        index = self._index
        at = bisect_right(index.starts, address) - 1
        if at < 0 or address >= index.ends[at]:
            if index.cut:
                raise OverBudget("a program's .eh_frame", MOST_FRAMES, "descriptions of frames")
            return None
        one = self._fde(index.places[at])
        if one.program[1] - one.program[0] > LARGEST_PROGRAM:
            raise Damaged("the description of a function's frames is too long")
        machine = _Machine(one.common, self._encoded)
        machine.begin(_Bytes(self.data, *one.common.first))
        machine.run(_Bytes(self.data, *one.program), one.start, address)
        return Rules(machine.cfa, machine.registers, one.common.back, one.common.interrupted)

    @cached_property
    def _cies(self) -> dict[int, _Cie]:
        """The CIEs that were read, by their offsets."""
        return {}

    @cached_property
    def _index(self) -> _Index:
        """The FDEs up to the first damaged one."""
        starts, ends, places = array("Q"), array("Q"), array("Q")
        reader = _Bytes(self.data)
        data, size, mask = self.data, len(self.data), (1 << 8 * self.word) - 1
        quick: dict[int, tuple[struct.Struct | None, int]] = {}
        at, cut = 0, False
        try:
            while at < size:
                body, length = at + 4, int.from_bytes(data[at : at + 4], "little")
                refers = body - int.from_bytes(data[body : body + 4], "little")
                form, relative = quick.get(refers, _SLOW)
                if form is not None and form.size + 4 <= length != _64_BIT and body + length <= size:
                    start, count = form.unpack_from(data, body + 4)
                    start = start + relative * (self.address + body + 4) & mask
                    end = min(start + (count & mask), MASK)
                    following = body + length
                else:
                    reader.at = at
                    inside = self._next(reader)
                    if inside is None:
                        break
                    following, body = reader.at, inside.at
                    back = inside.number(4)
                    if not back:
                        at = following
                        continue
                    common = self._cie(body - back)
                    start, end = self._range(inside, common)
                    if (common.encoding, self.word) in _QUICK:
                        quick[body - back] = _QUICK[common.encoding, self.word], bool(common.encoding & _RELATIVE)
                if len(starts) == MOST_FRAMES:
                    cut = True
                    break
                starts.append(start)
                ends.append(end)
                places.append(at)
                at = following
        except Damaged:
            pass
        return _Index(starts, ends, places, cut).in_order()

    def _next(self, reader: _Bytes) -> _Bytes | None:
        """Return a reader of the next entry, which begins with its size; None at the end. Raises Damaged."""
        size = reader.number(4)
        if not size:
            return None
        size = reader.number(8) if size == _64_BIT else size
        start = reader.at
        reader.take(size)
        return _Bytes(self.data, start, start + size)

    def _range(self, reader: _Bytes, common: _Cie) -> tuple[int, int]:
        """Return start and end of an FDE's code. Raises Damaged."""
        start, size = self._encoded(reader, common.encoding), self._encoded(reader, common.encoding & 0x0F)
        return start, min(start + size, MASK)

    def _cie(self, at: int) -> _Cie:
        """Return the CIE at `at`. Raises Damaged."""
        if at not in self._cies:
            if len(self._cies) >= MOST_COMMONS:
                raise Damaged("descriptions of frames have too little in common")
            self._cies[at] = self._read_cie(at)
        return self._cies[at]

    def _read_cie(self, at: int) -> _Cie:
        if at < 0:
            raise Damaged("a description of frames refers to nothing")
        reader = _Bytes(self.data, at)
        size = reader.number(4)
        if size > LARGEST_COMMON:
            raise Damaged("what descriptions of frames have in common is too long")
        reader.end = min(reader.end, reader.at + size)
        if reader.number(4):
            raise Damaged("a description of frames refers to another")
        version, name = reader.number(1), reader.string(LONGEST_NAME)
        code, data = reader.leb(), reader.leb(signed=True)
        back = reader.number(1) if version == 1 else reader.leb()
        encoding, augmented = 0, name[:1] == b"z"
        end = reader.leb() + reader.at if augmented else reader.at
        if name and not augmented:
            raise Damaged("a description of frames is of an unknown sort")
        for letter in name[1:]:
            if letter == ord("R"):
                encoding = reader.number(1)
            elif letter == ord("P"):
                self._encoded(reader, reader.number(1))
            elif letter == ord("L"):
                reader.number(1)
        if end > reader.end:
            raise Damaged("the description of frames ends too soon")
        return _Cie(code, data, back, encoding, augmented, b"S" in name, (end, reader.end))

    def _fde(self, at: int) -> _Fde:
        """Return the FDE at `at`. Raises Damaged."""
        reader = self._next(_Bytes(self.data, at))
        assert reader is not None, "it was read before"
        body = reader.at
        common = self._cie(body - reader.number(4))
        start, end = self._range(reader, common)
        if common.augmented:
            reader.block()
        return _Fde(start, end, common, (reader.at, reader.end))

    def _encoded(self, reader: _Bytes, encoding: int) -> int:
        """Read a pointer (DW_EH_PE_…)."""
        if encoding == _OMITTED:
            return 0
        here = self.address + reader.at
        form = encoding & 0x0F
        value = reader.leb(form == 9) if form in (1, 9) else reader.number(*_FORMATS.get(form, (self.word, False)))
        if encoding & 0x70 not in (0, _RELATIVE):
            raise Damaged("an address is relative to what is not known")
        return value + (here if encoding & 0x70 else 0) & (1 << 8 * self.word) - 1


Encoded = Callable[[_Bytes, int], int]


class _Machine:
    """Runs call frame instructions (DWARF 4, 6.4.2)."""

    def __init__(self, common: _Cie, encoded: Encoded) -> None:
        self._cie, self._encoded = common, encoded
        self.cfa: tuple[int, int] | bytes = b""
        self.registers: dict[int, Rule] = {}
        self._first: dict[int, Rule] = {}
        self._kept: list[tuple[tuple[int, int] | bytes, dict[int, Rule]]] = []

    def begin(self, reader: _Bytes) -> None:
        """Run the CIE's instructions, with which every FDE begins."""
        self.run(reader, 0, MASK)
        self._first = dict(self.registers)

    def run(self, reader: _Bytes, at: int, until: int) -> None:
        """Run instructions up to the rules for `until`, of code that begins at `at`."""
        while reader.at < reader.end and at <= until:
            at = self._step(reader, reader.number(1), at)

    def _step(self, reader: _Bytes, opcode: int, at: int) -> int:
        """Run one instruction and return the address from which the following ones apply."""
        common, registers, low = self._cie, self.registers, opcode & 0x3F
        match opcode & 0xC0:
            case 0x40:
                return at + low * common.code
            case 0x80:
                registers[low] = Saved(reader.leb() * common.data)
                return at
            case 0xC0:
                self._restore(low)
                return at
        match opcode:
            case 0x00:
                pass
            case 0x01:
                return self._encoded(reader, common.encoding)
            case 0x02 | 0x03 | 0x04:
                return at + reader.number(1 << opcode - 2) * common.code
            case 0x05:
                self._set(reader.leb(), Saved(reader.leb() * common.data))
            case 0x06:
                self._restore(reader.leb())
            case 0x07:
                self._set(reader.leb(), Undefined())
            case 0x08:
                registers.pop(reader.leb(), None)
            case 0x09:
                self._set(reader.leb(), InRegister(reader.leb()))
            case 0x0A:
                self._keep()
            case 0x0B:
                self._back()
            case 0x0C:
                self.cfa = reader.leb(), reader.leb()
            case 0x0D:
                self.cfa = reader.leb(), self._cfa[1]
            case 0x0E:
                self.cfa = self._cfa[0], reader.leb()
            case 0x0F:
                self.cfa = reader.block()
            case 0x10 | 0x16:
                self._set(reader.leb(), Expression(reader.block(), opcode == 0x16))
            case 0x11:
                self._set(reader.leb(), Saved(reader.leb(True) * common.data))
            case 0x12:
                self.cfa = reader.leb(), reader.leb(True) * common.data
            case 0x13:
                self.cfa = self._cfa[0], reader.leb(True) * common.data
            case 0x14 | 0x15:
                self._set(reader.leb(), Saved(reader.leb(opcode == 0x15) * common.data, whole=True))
            case 0x2E:  # DW_CFA_GNU_args_size
                reader.leb()
            case 0x2F:  # DW_CFA_GNU_negative_offset_extended
                self._set(reader.leb(), Saved(-reader.leb() * common.data))
            case _:
                raise Damaged(f"the description of frames has an unknown instruction {opcode:#x}")
        return at

    def _set(self, number: int, rule: Rule) -> None:
        if number >= MOST_REGISTERS:
            raise Damaged(f"the description of frames has a register {number}")
        self.registers[number] = rule

    @property
    def _cfa(self) -> tuple[int, int]:
        if isinstance(self.cfa, bytes):
            raise Damaged("the description of frames changes what it has not said")
        return self.cfa

    def _restore(self, number: int) -> None:
        self.registers.pop(number, None)
        if number in self._first:
            self.registers[number] = self._first[number]

    def _keep(self) -> None:
        if len(self._kept) >= DEEPEST:
            raise Damaged("the description of frames remembers too much")
        self._kept.append((self.cfa, dict(self.registers)))

    def _back(self) -> None:
        if not self._kept:
            raise Damaged("the description of frames goes back to nothing")
        self.cfa, self.registers = self._kept.pop()


def evaluate(expression: bytes, stack: list[int], register: Callable[[int], int], read: Callable[[int], int]) -> int:
    """Evaluate a DWARF expression (DWARF 4, 2.5). stack: its initial content. register, read: by number, by address.
    Raises Damaged for operations that descriptions of frames do not use, and what `register` and `read` raise.
    """
    if len(expression) > LARGEST_EXPRESSION:
        raise Damaged("an expression of a frame is too long")
    reader, stack = _Bytes(expression), [*stack]
    while reader.at < reader.end:
        _operate(reader, reader.number(1), stack, register, read)
    return _pop(stack)


def _operate(
    reader: _Bytes, opcode: int, stack: list[int], register: Callable[[int], int], read: Callable[[int], int]
) -> None:
    if 0x30 <= opcode < 0x50:
        stack.append(opcode - 0x30)
    elif 0x70 <= opcode < 0x90:
        stack.append(register(opcode - 0x70) + reader.leb(True) & MASK)
    elif opcode == 0x92:
        stack.append(register(reader.leb()) + reader.leb(True) & MASK)
    elif 0x08 <= opcode < 0x10:
        stack.append(reader.number(1 << (opcode - 8) // 2, bool(opcode & 1)) & MASK)
    elif opcode in (0x10, 0x11):
        stack.append(reader.leb(opcode == 0x11) & MASK)
    elif opcode == 0x06:
        stack.append(read(_pop(stack)))
    elif opcode == 0x12:
        stack.append(stack[-1] if stack else _pop(stack))
    elif opcode == 0x23:
        stack.append(_pop(stack) + reader.leb() & MASK)
    elif opcode in _OF_TWO:
        right, left = _pop(stack), _pop(stack)
        stack.append(_OF_TWO[opcode](left, right) & MASK)
    else:
        raise Damaged(f"a frame is described by an unknown operation {opcode:#x}")


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_OF_TWO: Mapping[int, Callable[[int, int], int]] = {
    0x1A: lambda left, right: left & right,
    0x1C: lambda left, right: left - right,
    0x1E: lambda left, right: left * right,
    0x21: lambda left, right: left | right,
    0x22: lambda left, right: left + right,
    0x24: lambda left, right: left << min(right, 64),
    0x25: lambda left, right: left >> min(right, 64),
    0x27: lambda left, right: left ^ right,
    0x29: lambda left, right: left == right,
    0x2A: lambda left, right: _signed(left) >= _signed(right),
    0x2B: lambda left, right: _signed(left) > _signed(right),
    0x2C: lambda left, right: _signed(left) <= _signed(right),
    0x2D: lambda left, right: _signed(left) < _signed(right),
    0x2E: lambda left, right: left != right,
}


def _pop(stack: list[int]) -> int:
    if not stack:
        raise Damaged("an expression takes more than it has")
    return stack.pop()
