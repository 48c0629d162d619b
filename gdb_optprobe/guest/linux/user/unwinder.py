"""Unwind a user program from registers and stack words copied at a hit. The process may be gone.

    place in the file ─► rules in .eh_frame ─► its caller ─► …       as GDB does it
                      └► none: words that point right behind a call in the program's text, which are uncertain;
                         where the ABI links frames, only those that the links lead to
Where a call returns to a trap of a uretprobe, the caller is not on the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from gdb_optprobe.budget import OverBudget
from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.linux.backtrace import MOST, Copy
from gdb_optprobe.guest.linux.user import cfi
from gdb_optprobe.guest.linux.user.cfi import CallFrames, Expression, InRegister, Rule, Rules, Saved, Undefined
from gdb_optprobe.guest.linux.user.elf import Elf
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.isa.abi import UserFrames
from gdb_optprobe.isa.base import Flow, Insn

LONGEST_CALL = 8
"""Bytes of one, at most."""


@dataclass(frozen=True, slots=True)
class UserFrame:
    """A frame of a program.

    address: in the process; 0 where the caller is not known.
    symbol:  "" in a file that is not known, or has no symbols in memory; of an address 0, the limit that was met.
    sure:    false if it may be left from an earlier call, or its file has been written to since.
    """

    address: int
    symbol: str = ""
    sure: bool = True


UNKNOWN = UserFrame(0)


@dataclass(frozen=True, slots=True)
class _State:
    """The registers known in a frame. exact: see UserFrame."""

    registers: Mapping[str, int]
    exact: bool


class _NoRules(OptprobeError):
    """No data describe how a frame's caller is found."""


@dataclass(frozen=True)
class Source:
    """A program's file in one report. certain: the file is the one that processes had mapped."""

    program: Program
    certain: bool = True

    @cached_property
    def call_frames(self) -> CallFrames | None:
        """Its .eh_frame; None where it cannot be read now: that is not tried again."""
        try:
            return self.program.elf.call_frames
        except OptprobeError:
            return None

    @cached_property
    def has_symbols(self) -> bool:
        """Whether symbols can be read now, even if there are none."""
        try:
            return self.program.elf.symbols is not None
        except OptprobeError:
            return False


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file in a process. bias: load address less link address."""

    source: Source
    bias: int

    @property
    def program(self) -> Program:
        return self.source.program

    @property
    def elf(self) -> Elf:
        return self.program.elf

    def rules(self, address: int) -> Rules | None:
        """See CallFrames.rules. Raises OptprobeError."""
        if self.source.call_frames is None:
            raise _NoRules("what the file says of its frames cannot be read now")
        return self.source.call_frames.rules(address - self.bias)

    def holds(self, address: int) -> bool:
        """Return whether its code is at `address`."""
        return any(segment.holds(address - self.bias) for segment in self.elf.code)

    def may_have_uprobe(self, address: int) -> bool:
        """Return whether an address is in the padding after the file's code, where only uprobes put traps."""
        start, end = self.program.filler
        return start <= address - self.bias < end

    def spell(self, address: int, exact: bool) -> str:
        """Return an address as text. exact: else it is a return address, which may be just behind its function."""
        place = address - self.bias
        bounds = self.program.function(place - 1) if not exact else None
        return f"{self.program.spell(bounds[0])}+{place - bounds[0]:#x}" if bounds else self.program.spell(place)


@dataclass(frozen=True)
class Process:
    """A process as it was at a hit. files: the known files that it has mapped. decode: code at an address."""

    files: tuple[Loaded, ...]
    frames: UserFrames
    decode: Callable[[bytes, int], list[Insn]]

    def callers(self, registers: Mapping[str, int], copy: Copy) -> Iterator[UserFrame]:
        """Yield the frames, innermost first, that of the PC. registers: at the hit."""
        state, unknown = _State(registers, exact=True), UNKNOWN
        for _ in range(MOST):
            pc = state.registers[self.frames.pc]
            if any(file.may_have_uprobe(pc) for file in self.files):
                break
            yield UserFrame(pc, self._spell(pc, state.exact), self._is_certain(state))
            try:
                caller = self._caller(state, copy)
            except OverBudget as error:
                unknown = UserFrame(0, error.message)
                break
            except OptprobeError:
                break
            if caller is None:
                return
            state = caller
        yield unknown
        yield from self._guessed(state, copy)

    def _caller(self, state: _State, copy: Copy) -> _State | None:
        """Return the caller's state; None where there is none. Raises Unreadable, OptprobeError."""
        if not self._is_certain(state):
            raise _NoRules("the file has been written to since")
        inside = self._inside(state)
        file = self._file(inside)
        rules = file.rules(inside) if file is not None else None
        found = self._linked(state, copy) if rules is None else _Frame(self.frames, rules, state, copy).caller()
        if found is not None and not (found.registers[self.frames.pc] and self._is_certain(found)):
            raise _NoRules("a return address is 0, or in a file that has been written to since")
        return found

    def _inside(self, state: _State) -> int:
        """Return an address inside the function: a return address may be just behind the function's last instruction.
        """
        return state.registers[self.frames.pc] - (not state.exact)

    def _is_certain(self, state: _State) -> bool:
        file = self._file(self._inside(state))
        return file is None or file.source.certain

    def _linked(self, state: _State, copy: Copy) -> _State:
        """Follow the link of a frame: a function that has called another has stored it, where the ABI has such links.
        """
        frames = self.frames
        if frames.chain is None or state.exact:
            raise _NoRules("nothing tells of this code's frames")
        sp = _word(copy, state.registers[frames.sp], frames.word)
        if sp <= state.registers[frames.sp]:
            raise _NoRules("the stack is damaged")
        return _State({frames.sp: sp, frames.pc: _word(copy, sp + frames.chain, frames.word)}, exact=False)

    def _guessed(self, state: _State, copy: Copy) -> Iterator[UserFrame]:
        """Yield frames of words that may be return addresses."""
        found = filter(self._is_behind_call, self._words(state, copy))
        for address, _ in zip(found, range(MOST), strict=False):
            yield UserFrame(address, self._spell(address, False), sure=False)

    def _words(self, state: _State, copy: Copy) -> Iterator[int]:
        """Yield the words of linked frames, where the ABI has such links; else all words of the stack."""
        frames, sp = self.frames, state.registers[self.frames.sp]
        if state.exact and frames.link and state.registers[frames.link] != state.registers[frames.pc]:
            yield state.registers[frames.link]
        if frames.chain is None:
            for at in range(max(sp - copy.start, 0), len(copy.data) - frames.word + 1, frames.word):
                yield int.from_bytes(copy.data[at : at + frames.word], "little")
            return
        state = _State(state.registers, exact=False)
        with suppress(OptprobeError):
            while True:
                state = self._linked(state, copy)
                yield state.registers[frames.pc]

    def _file(self, address: int) -> Loaded | None:
        return next((file for file in self.files if file.holds(address)), None)

    def _spell(self, address: int, exact: bool) -> str:
        file = self._file(address - (not exact))
        return file.spell(address, exact) if file is not None and file.source.has_symbols else ""

    def _is_behind_call(self, address: int) -> bool:
        file = self._file(address - 1)
        if file is None:
            return False
        end = address - file.bias
        try:
            start = max(end - LONGEST_CALL, file.program.code_start(end - 1))
            code = file.elf.text(start, end - start)
        except OptprobeError:
            return False
        return any(self._is_call(code[-size:], end - size) for size in range(1, len(code) + 1))

    def _is_call(self, code: bytes, place: int) -> bool:
        found = self.decode(code, place)
        return len(found) == 1 and found[0].data == code and found[0].flow in (Flow.CALL, Flow.INDIRECT_CALL)


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame with rules in the file."""

    frames: UserFrames
    rules: Rules
    state: _State
    copy: Copy

    def caller(self) -> _State | None:
        """Return the caller's state; None where there is none. Raises Unreadable, OptprobeError."""
        frames, rules, cfa = self.frames, self.rules, self._cfa()
        back = rules.registers.get(rules.back, InRegister(rules.back))
        if isinstance(back, Undefined):
            return None
        found = {name: self.state.registers[name] for name in frames.kept if name in self.state.registers}
        for number, rule in rules.registers.items():
            name = frames.numbers.get(number)
            if name is None or number == rules.back:
                continue
            found.pop(name, None)
            if (value := self._if_there(rule, cfa)) is not None:
                found[name] = value
        pc = self._value(back, cfa)
        if not any(frames.numbers.get(number) == frames.sp for number in rules.registers):
            found[frames.sp] = cfa
        if frames.sp not in found or not (rules.interrupted or self._is_above(found[frames.sp])):
            raise _NoRules("the stack is damaged")
        return _State({**found, frames.pc: pc}, rules.interrupted)

    def _is_above(self, sp: int) -> bool:
        """Return whether `sp` is a valid next SP: a frame is only empty where the return address is in a register."""
        now = self.state.registers[self.frames.sp]
        return sp > now or (sp == now and self.state.exact and bool(self.frames.link))

    def _cfa(self) -> int:
        if isinstance(self.rules.cfa, bytes):
            return cfi.evaluate(self.rules.cfa, [], self._register, self._read)
        number, offset = self.rules.cfa
        return self._register(number) + offset & self._mask

    def _if_there(self, rule: Rule, cfa: int) -> int | None:
        """Return a register, or None where it cannot be read: it may never be needed."""
        try:
            return None if isinstance(rule, Undefined) else self._value(rule, cfa)
        except (Unreadable, _NoRules):
            return None

    def _value(self, rule: Saved | InRegister | Expression, cfa: int) -> int:
        match rule:
            case InRegister(number):
                return self._register(number)
            case Saved(offset, whole):
                at = cfa + offset & self._mask
            case Expression(expression, whole):
                at = cfi.evaluate(expression, [cfa], self._register, self._read)
        return at if whole else self._read(at)

    def _register(self, number: int) -> int:
        name = self.frames.numbers.get(number)
        if name is None or name not in self.state.registers:
            raise _NoRules(f"register {number} is not known")
        return self.state.registers[name]

    def _read(self, address: int) -> int:
        return _word(self.copy, address, self.frames.word)

    @property
    def _mask(self) -> int:
        return (1 << 8 * self.frames.word) - 1


def _word(copy: Copy, address: int, size: int) -> int:
    return int.from_bytes(copy.read(address, size), "little")
