"""Traps in user programs on x86-64, `int3`, and what the instruction under one does to `struct pt_regs`.

    push, call   writable ─► the stack's page, written through the kernel's map of physical memory
    ret          the same, read
    arithmetic   run on rcx and rdx, with what these registers are; its flags go into the saved ones
Only what is relative to the saved PC, the byte behind the trap, is in the code: it serves wherever a program is loaded.
The frame's address stays in rdi; rax, rcx, rdx, rsi and r8 to r11 are free (arch/x86/entry/calling.h).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gdb_optprobe.guest.linux.arch.x86_64 import leaf_entry
from gdb_optprobe.guest.linux.arch.x86_64.leaf_entry import LeafWalk
from gdb_optprobe.guest.linux.arch.x86_64.user_stops import STOPPING
from gdb_optprobe.isa.abi import UserFrames
from gdb_optprobe.isa.base import Code, Dead, Insn, joined
from gdb_optprobe.isa.codegen import Address, Arithmetic, EntryState, Label, MemoryValue
from gdb_optprobe.isa.user import Emulation, UserEmitter, UserStopping, UserTrapping, branch_each, load_each
from gdb_optprobe.isa.x86_64.abi import ARITHMETIC_FLAGS, CALLEE_SAVED, CARRY, FRAMES, GENERAL
from gdb_optprobe.isa.x86_64.codegen import BACKEND, X86Emitter
from gdb_optprobe.isa.x86_64.encoder import Relative, immediate, instruction, push
from gdb_optprobe.isa.x86_64.user_code import copied, decoded
from gdb_optprobe.isa.x86_64.writer import fits

_ORDER = ("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi")
REGISTERS = {name: 8 * place for place, name in enumerate(_ORDER)} | {
    "rip": 128, "cs": 136, "eflags": 144, "rsp": 152, "ss": 160,
}  # fmt: skip
"""struct pt_regs, arch/x86/include/asm/ptrace.h."""
_RET = b"\xc3"
_CARRY, _ZERO, _SIGN, _OVERFLOW, _PARITY = 0x001, 0x040, 0x080, 0x800, 0x004
# Opcodes of two registers that change no other (SDM volume 2, table A-2), for operands of 32 and 64 bits.
_OF_TWO = {base + form for base in range(0x00, 0x40, 8) for form in (1, 3)} | {0x85, 0x89, 0x8B}
_ON_REGISTERS = {(opcode, 1) for opcode in _OF_TWO} | {(0x83, 2), (0x81, 5)}
"""Opcodes, and bytes from ModRM on."""


class _UserTrapEmitter(X86Emitter):
    """See isa.user.UserEmitter."""

    def __init__(self, before: EntryState, walk: LeafWalk | None) -> None:
        super().__init__(before)
        self._walk = walk

    def begin(self) -> None:
        """Emit nothing: the kernel's entry code has saved all registers."""

    def kernels(self, address: int) -> None:
        self.restore_and_jump((), address)

    def find_page(self, absent: Label, other: Label) -> None:
        assert self._walk is not None, "of a kernel"
        self._walk(self, absent, other)

    def load_two(self, first: str, second: str, base: str, at: tuple[int, int]) -> None:
        load_each(self, (first, second), base, at)

    def join(self, to: str, upper: str, low: int) -> None:
        self.binary(Arithmetic.SHL, upper, upper, low, 64, False)
        self.binary(Arithmetic.AND, to, to, (1 << low) - 1, 64, False)
        self.binary(Arithmetic.OR, to, to, upper, 64, False)

    def branch_unless(self, words: Sequence[tuple[MemoryValue, str]], label: Label) -> None:
        branch_each(self, words, label)

    def back(self) -> None:
        self._items.append(_RET)

    def continue_at(self, register: str) -> None:
        """Emit push and ret: an indirect jump would have to find endbr64 (SDM volume 1, 17.3)."""
        self._items.append(push(register) + _RET)


@dataclass(frozen=True)
class X86User:
    """See isa.user.UserTrapping. walk: finds pages; None where no dispatcher is made."""

    walk: LeafWalk | None = None
    frame: str = "rdi"
    trap: bytes = b"\xcc"
    behind: int = 1
    around: int = 0
    pc: int = REGISTERS["rip"]
    mode: MemoryValue | None = MemoryValue(Address("rdi", REGISTERS["cs"]), 1)  # noqa: RUF009 (it is frozen)
    user: int = 3
    far: int = 4  # of a selector: in the LDT (SDM volume 3, 3.4.2)
    leaf = leaf_entry.REGISTERS
    scratch = Dead(True, frozenset((*GENERAL, CARRY)).difference(CALLEE_SAVED))
    registers: ClassVar[Mapping[str, int]] = REGISTERS
    resident: ClassVar[Mapping[str, str]] = {}
    frames: ClassVar[Mapping[int, UserFrames]] = FRAMES
    stopping: ClassVar[UserStopping] = STOPPING
    order = staticmethod(BACKEND.order)

    decode = staticmethod(decoded)
    copy = staticmethod(copied)

    def emitter(self, before: EntryState) -> UserEmitter:
        return _UserTrapEmitter(before, self.walk)

    def reserved(self, code: Sequence[Insn]) -> Collection[int]:
        return ()

    def is_landing_pad(self, insn: Insn) -> bool:
        return False  # no kernel has programs' branches checked

    def moved(self, distance: int) -> Code:
        return lambda at: _add("rip", distance) + _RET

    def emulation(self, insn: Insn, bits: int, writable: int) -> Emulation | None:
        data = insn.data
        found = _alone(data, bits)
        if found is not None:
            return Emulation(lambda at: found + _RET, may_fail=False)
        makes = _on_stack(data, bits)
        return Emulation(makes(writable), may_fail=True) if makes is not None else None


def _alone(data: bytes, bits: int) -> bytes | None:
    """Return the emulation of an instruction without memory operands; None for others."""
    behind = len(data) - 1
    if _does_nothing(data):
        return _add("rip", behind)
    if (jump := _jump(data, bits // 8)) is not None:
        return jump
    rex, opcode, rest = _parts(data, bits)
    if opcode in range(0xB8, 0xC0) and len(rest) == 4:
        number = opcode & 7 | (rex & 1) << 3
        return _constant("rax", int.from_bytes(rest, "little")) + _store("rax", GENERAL[number]) + _add("rip", behind)
    if not rest or opcode < 0:
        return None
    done = None
    if opcode == 0x8D and rest[0] < 0xC0:
        done = _lea(rex, rest, behind, bits)
    elif rest[0] >= 0xC0 and (opcode, len(rest)) in _ON_REGISTERS:
        done = _operation(rex, opcode, rest)
    elif opcode == 0xC7 and len(rest) == 5 and rest[0] & 0xF8 == 0xC0:
        done = instruction(b"\xc7", 0, "rax", 8 if rex & 8 else 4, rest[1:])
        done += _store("rax", GENERAL[rest[0] & 7 | (rex & 1) << 3])
    return done + _add("rip", behind) if done is not None else None


def _does_nothing(data: bytes) -> bool:
    """Return whether it is nop in any form, endbr64 or endbr32."""
    plain = data.lstrip(b"\x66\x2e")
    if plain == b"\x90" or data in (bytes.fromhex("f30f1efa"), bytes.fromhex("f30f1efb")):
        return True
    return plain[:2] == b"\x0f\x1f" and len(plain) > 2 and plain[2] >> 3 & 7 == 0


def _parts(data: bytes, bits: int) -> tuple[int, int, bytes]:
    """Return REX, opcode, and what follows; an opcode of another map, or behind other prefixes, is -1."""
    rex, at = (data[0], 1) if bits == 64 and data[0] & 0xF0 == 0x40 else (0, 0)
    opcode = data[at] if at < len(data) else -1
    return (rex, opcode if opcode not in (0x0F, 0x66, 0x67, 0xF2, 0xF3) else -1, data[at + 1 :])


def _jump(data: bytes, word: int) -> bytes | None:
    """Return the emulation of jmp and jcc. word: bytes of an address; a distance wraps around at that size."""
    behind = len(data) - 1
    if (data[0], len(data)) in ((0xEB, 2), (0xE9, 5)):
        return _add("rip", behind + _signed(data[1:]), word)
    condition = -1
    if data[0] & 0xF0 == 0x70 and len(data) == 2:
        condition, distance = data[0] & 15, _signed(data[1:])
    elif len(data) == 6 and data[0] == 0x0F and data[1] & 0xF0 == 0x80:
        condition, distance = data[1] & 15, _signed(data[2:])
    if condition < 0:
        return None
    taken = _add("rip", distance, word)
    unless = b"\x74" if condition % 2 == 0 else b"\x75"  # je, jne: of what `_test` leaves
    return _test(condition >> 1) + unless + bytes((len(taken),)) + taken + _add("rip", behind, word)


def _test(condition: int) -> bytes:
    """Encode a test that leaves ZF clear if the saved flags satisfy jcc of this number, without its lowest bit."""
    load = _load("rax", "eflags", 4)
    masks = {0: _OVERFLOW, 1: _CARRY, 2: _ZERO, 3: _CARRY | _ZERO, 4: _SIGN, 5: _PARITY}
    if condition in masks:
        return load + b"\xa9" + immediate(masks[condition], 4)
    differ = b"\x89\xc1\xc1\xe1\x04\x31\xc1"  # mov ecx, eax; shl ecx, 4; xor ecx, eax: OF is whether SF differs from it
    zero = b"\x83\xe0\x40\xc1\xe0\x05\x09\xc1" if condition == 7 else b""  # and eax, 64; shl eax, 5; or ecx, eax
    return load + differ + zero + b"\xf7\xc1" + immediate(_OVERFLOW, 4)


def _lea(rex: int, rest: bytes, behind: int, bits: int) -> bytes | None:
    size = 8 if rex & 8 else 4
    mod, to, rm = rest[0] >> 6, GENERAL[rest[0] >> 3 & 7 | (rex & 4) << 1], rest[0] & 7
    scale, index, base = 0, None, GENERAL[rm | (rex & 1) << 3] if rm != 4 else None
    tail = rest[1:]
    if rm == 4:
        sib, tail = tail[0], tail[1:]
        scale, number = sib >> 6, sib >> 3 & 7 | (rex & 2) << 2
        index = GENERAL[number] if number != 4 else None
        base = None if mod == 0 and sib & 7 == 5 else GENERAL[sib & 7 | (rex & 1) << 3]
    elif mod == 0 and rm == 5:
        if bits == 64:
            return _load("rax", "rip") + _lea_of(size, 0x80, 0, _signed(tail) + behind) + _store("rax", to)
        base = None
    offset = _signed(tail) if tail else 0
    loads = _load("rax", base) if base is not None else _constant("rax", 0)
    loads += _load("rcx", index) if index is not None else b""
    return loads + _lea_of(size, 0x88 if index is not None else 0x80, scale, offset) + _store("rax", to)


def _lea_of(size: int, form: int, scale: int, offset: int) -> bytes:
    """Encode lea rax, [rax + rcx * 2**scale + offset], without rcx where the form is 0x80."""
    rex = b"\x48" if size == 8 else b""
    if form == 0x80:
        return rex + b"\x8d\x80" + immediate(offset, 4)
    return rex + b"\x8d\x84" + bytes((scale << 6 | 0x08,)) + immediate(offset, 4)


def _operation(rex: int, opcode: int, rest: bytes) -> bytes:
    """Encode an instruction of registers, run on rcx (reg) and rdx (r/m)."""
    reg, rm = GENERAL[rest[0] >> 3 & 7 | (rex & 4) << 1], GENERAL[rest[0] & 7 | (rex & 1) << 3]
    two = opcode in _OF_TWO
    wide = b"\x48" if rex & 8 else b""
    moves = opcode in (0x89, 0x8B)
    kind = (opcode if two else rest[0]) >> 3 & 7
    carries = not moves and opcode != 0x85 and kind in (2, 3)
    compares = opcode == 0x85 or (not moves and kind == 7)
    code = _load("rdx", rm) + (_load("rcx", reg) if two else b"")
    code += b"\x0f\xba" + _frame(4, "eflags") + b"\x00" if carries else b""  # bt: CF as it was
    modrm = 0xC0 | (1 << 3 if two else rest[0] & 0x38) | 2
    code += wide + bytes((opcode, modrm)) + rest[1:]
    if not moves:
        code += _keep_flags()
    if compares:
        return code
    to_reg = two and opcode & 2
    return code + (_store("rcx", reg) if to_reg else _store("rdx", rm))


def _keep_flags() -> bytes:
    """Encode: copy the current arithmetic flags into the saved ones; changes rax and rsi."""
    flags = b"\x9c\x58\x25" + immediate(ARITHMETIC_FLAGS, 4)  # pushfq; pop rax; and eax
    saved = _load("rsi", "eflags") + b"\x81\xe6" + immediate(~ARITHMETIC_FLAGS, 4)
    return flags + saved + b"\x09\xf0" + _store("rax", "eflags")


def _on_stack(data: bytes, bits: int) -> Callable[[int], Code] | None:
    """Return the emulation of push, call and ret, as a function of the address of `writable`; None for others."""
    word, behind = bits // 8, len(data) - 1
    rex, opcode, rest = _parts(data, bits)
    value = None
    if opcode in range(0x50, 0x58) and not rest:
        value = _load("rcx", GENERAL[opcode & 7 | (rex & 1) << 3])
    elif (opcode, len(rest)) in ((0x68, 4), (0x6A, 1)):
        value = _constant("rcx", _signed(rest))
    elif not rex and (opcode, len(rest)) == (0xE8, 4):
        value = _load("rcx", "rip", word) + instruction(b"\x83", 0, "rcx", word, immediate(behind, 1))
        behind += _signed(rest)
    if value is not None:
        return _pushing(value, word, behind)
    if not rex and (opcode, len(rest)) in ((0xC3, 0), (0xC2, 2)):
        return _returning(word, word + int.from_bytes(rest, "little"))
    return None


def _pushing(value: bytes, word: int, on: int) -> Callable[[int], Code]:
    def code(writable: int) -> Code:
        stores = value + instruction(b"\x89", "rcx", Address("rax"), word)
        stores += instruction(b"\x83", 5, Address("rdi", REGISTERS["rsp"]), word, immediate(word, 1))
        stores += _add("rip", on, word) + _RET
        return _at_stack(-word, word, writable, stores)

    return code


def _returning(word: int, popped: int) -> Callable[[int], Code]:
    def code(writable: int) -> Code:
        loads = instruction(b"\x8b", "rcx", Address("rax"), word) + _store("rcx", "rip")
        loads += instruction(b"\x81", 0, Address("rdi", REGISTERS["rsp"]), word, immediate(popped, 4)) + _RET
        return _at_stack(0, word, writable, loads)

    return code


def _at_stack(offset: int, word: int, writable: int, then: bytes) -> Code:
    """Encode: put into rax the address of the word at `offset` from the stack pointer.
    Where that is not known, skip `then`.
    """
    address = _load("rax", "rsp", word) + instruction(b"\x83", 0, "rax", word, immediate(offset, 1))
    fails = b"\x0f\x82" + immediate(len(then), 4)
    parts: list[Code] = [lambda at: address + _constant("rsi", word)]
    parts.append(lambda at: Relative(b"\xe8" + bytes(4), 1, writable).encode(at))
    parts.append(lambda at: fails + then)
    return joined(parts)


def _load(to: str, name: str, size: int = 8) -> bytes:
    return instruction(b"\x8b", to, Address("rdi", REGISTERS[name]), size)


def _store(source: str, name: str) -> bytes:
    return instruction(b"\x89", source, Address("rdi", REGISTERS[name]))


def _frame(extension: int, name: str) -> bytes:
    """Encode ModRM and displacement of a saved register."""
    return instruction(b"", extension, Address("rdi", REGISTERS[name]), 4)


def _add(name: str, number: int, word: int = 8) -> bytes:
    if not number:
        return b""
    opcode, size = (b"\x83", 1) if fits(number, 8) else (b"\x81", 4)
    return instruction(opcode, 0, Address("rdi", REGISTERS[name]), word, immediate(number, size))


def _constant(to: str, number: int) -> bytes:
    """Encode mov of a number, sign-extended where it is negative."""
    if number < 0:
        return instruction(b"\xc7", 0, to, 8, immediate(number, 4))
    return instruction(b"\xc7", 0, to, 4, immediate(number, 4))


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


USER = X86User()
_: UserTrapping = USER
