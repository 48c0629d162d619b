"""Unwind the kernel's stack with the kernel's own ORC tables (Documentation/arch/x86/orc-unwinder.rst).

    __start_orc_unwind_ip   s32 for each entry: address of the code it is for, from the s32's own address; ascending
    __start_orc_unwind      orc_entry for each: where the caller's stack pointer was, and where its RBP is saved
    orc_lookup              u32 for each 256 bytes of text: the first entry that can be for them

An entry's `sp` is what DWARF calls the CFA. What lies there depends on the entry's type: the return address just below
it, or a pt_regs (whole, or only the five words of an interrupt's frame) from it upward. The steps are those of
unwind_next_frame() in arch/x86/kernel/unwind_orc.c. ORC knows RIP, RSP and RBP of a caller; all registers only behind a
pt_regs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.isa.base import ReadMemory

__all__ = ["LEGACY", "MODERN", "Encoding", "Entry", "Kind", "State", "Tables", "encoding", "unwind"]

ENTRY_SIZE = 6
LOOKUP_BLOCK = 256
REMEMBERED = 1 << 14
"""Entries kept: a guest may be anywhere in its text at its hits, all the more one that lies."""
MASK = (1 << 64) - 1

# What register fields mean (arch/x86/include/asm/orc_types.h, ORC_REG_*), whatever number a kernel has for each.
UNDEFINED, PREV_SP, DX, DI, BP, SP, R10, R13, BP_INDIRECT, SP_INDIRECT, AX, UNKNOWN = range(12)
PLAIN = {SP: "rsp", BP: "rbp", R10: "r10", R13: "r13", DI: "rdi", DX: "rdx", AX: "rax"}
# By the kernel's number; which of them a kernel has, its code tells (orc_layout.py).
FIRST_NUMBERS = (UNDEFINED, PREV_SP, DX, DI, BP, SP, R10, R13, BP_INDIRECT, SP_INDIRECT)
SECOND_NUMBERS = (UNDEFINED, AX, DX, SP, BP, DI, R10, R13, PREV_SP, SP_INDIRECT, BP_INDIRECT)
NUMBERINGS = (FIRST_NUMBERS, SECOND_NUMBERS)

# arch/x86/include/asm/ptrace.h: struct pt_regs
PT_REGS = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8"),
    *("rax", "rcx", "rdx", "rsi", "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss"),
)
IRET_FRAME = PT_REGS.index("rip")


class Kind(Enum):
    """What lies at an entry's `sp`: ORC_TYPE_*."""

    UNDEFINED = "nothing is known"
    END_OF_STACK = "the stack ends"
    CALL = "a return address lies below"
    REGS = "a pt_regs"
    REGS_PARTIAL = "an interrupt's frame"


@dataclass(frozen=True, slots=True)
class Encoding:
    """Where an orc_entry's bits are, as (first bit of its six bytes, bits), and what its `type` means.

    signal: absent before 6.3, where every pt_regs was one of interrupted code.
    end:    absent since 6.4, which has a type for it.
    registers: by number.
    """

    type: tuple[int, int]
    signal: tuple[int, int] | None
    end: tuple[int, int] | None
    kinds: tuple[Kind, ...]
    registers: tuple[int, ...] = FIRST_NUMBERS

    def numbered(self, registers: Sequence[int]) -> Encoding:
        return replace(self, registers=tuple(registers))


OLD_KINDS = (Kind.CALL, Kind.REGS, Kind.REGS_PARTIAL)
NEW_KINDS = (Kind.UNDEFINED, Kind.END_OF_STACK, *OLD_KINDS)
# Until 6.2, and since 6.4 (fb799447ae29).
LEGACY = Encoding(type=(40, 2), signal=None, end=(42, 1), kinds=OLD_KINDS)
MODERN = Encoding(type=(40, 3), signal=(43, 1), end=None, kinds=NEW_KINDS)


def encoding(members: Mapping[str, Sequence[int]]) -> Encoding:
    """Return the encoding of a kernel by the members of `struct orc_entry` in its BTF: name → (first bit, bits)."""
    places = {name: (first, bits) for name, (first, bits) in members.items()}
    kinds = NEW_KINDS if places["type"][1] > 2 else OLD_KINDS
    return Encoding(places["type"], places.get("signal"), places.get("end"), kinds)


@dataclass(frozen=True, slots=True)
class Entry:
    """One orc_entry. signal: whether the caller was interrupted, so that its RIP is no return address."""

    sp_register: int
    sp_offset: int
    bp_register: int
    bp_offset: int
    kind: Kind
    signal: bool


CALLED = Entry(SP, 8, UNDEFINED, 0, Kind.CALL, signal=False)
"""Where a call has just led: as unwind_orc.c has it of a null pointer too."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Where a kernel's (or a module's) ORC tables are.

    text:   start and end of the code they are for.
    ips:    the address of the first and of the end of the table of code addresses.
    lookup: the address of `orc_lookup` and how many words it has; (0, 0) where there is none. It is for _stext and up.
    """

    text: tuple[int, int]
    ips: tuple[int, int]
    entries: int
    lookup: tuple[int, int] = (0, 0)
    encoding: Encoding = MODERN
    _found: dict[int, Entry | None] = field(default_factory=dict, repr=False, compare=False)

    def holds(self, address: int) -> bool:
        """Return whether `address` is in one of the tables."""
        count = (self.ips[1] - self.ips[0]) // 4
        tables = ((self.ips[0], 4 * count), (self.entries, ENTRY_SIZE * count), (self.lookup[0], 4 * self.lookup[1]))
        return any(start <= address < start + size for start, size in tables)

    def find(self, address: int, read: ReadMemory) -> Entry | None:
        """Return the entry for the instruction at `address`; None where there is none. It is read once: tables never
        change.
        """
        if not address:
            return CALLED
        if address not in self._found:
            if len(self._found) >= REMEMBERED:
                self._found.clear()
            data = self.raw(address, read)
            self._found[address] = decode(data, self.encoding) if data is not None else None
        return self._found[address]

    def raw(self, address: int, read: ReadMemory) -> bytes | None:
        """Return the bytes of that entry."""
        count = (self.ips[1] - self.ips[0]) // 4
        if not self.text[0] <= address < self.text[1] or count <= 0:
            return None
        low, high = self._block(address, count, read)
        # The last entry from `low` on that begins no later than the address. Small ranges are read at once.
        while high - low > 64:
            middle = (low + high) // 2
            if self._code_address(middle, read(self.ips[0] + 4 * middle, 4)) <= address:
                low = middle
            else:
                high = middle
        place = self.ips[0] + 4 * low
        words = struct.unpack(f"<{high - low}i", read(place, 4 * (high - low)))
        index = max((at for at, word in enumerate(words) if place + 4 * at + word <= address), default=0)
        return read(self.entries + ENTRY_SIZE * (low + index), ENTRY_SIZE)

    def _block(self, address: int, count: int, read: ReadMemory) -> tuple[int, int]:
        """Return the range of entries in which the one for `address` is: orc_find()."""
        table, blocks = self.lookup
        block = (address - self.text[0]) // LOOKUP_BLOCK
        if block + 1 >= blocks:
            return 0, count
        first, last = struct.unpack("<II", read(table + 4 * block, 8))
        return (first, last + 1) if first <= last < count else (0, count)

    def _code_address(self, index: int, word: bytes) -> int:
        return self.ips[0] + 4 * index + int.from_bytes(word, "little", signed=True)


def decode(data: bytes, layout: Encoding) -> Entry | None:
    """One orc_entry; None where its type has no meaning."""
    sp_offset, bp_offset = struct.unpack_from("<hh", data)
    bits = int.from_bytes(data[:ENTRY_SIZE], "little")
    sp_register, bp_register = (
        layout.registers[number] if number < len(layout.registers) else UNKNOWN
        for number in (bits >> 32 & 15, bits >> 36 & 15)
    )
    number = _bits(bits, layout.type)
    if number >= len(layout.kinds):
        return None
    kind = layout.kinds[number]
    if layout.end and sp_register == UNDEFINED:
        kind = Kind.END_OF_STACK if _bits(bits, layout.end) else Kind.UNDEFINED
    signal = bool(_bits(bits, layout.signal)) if layout.signal else kind in (Kind.REGS, Kind.REGS_PARTIAL)
    return Entry(sp_register, sp_offset, bp_register, bp_offset, kind, signal)


@dataclass(frozen=True, slots=True)
class State:
    """A frame: the registers known in it, by GDB's names; "rip", "rsp" and "rbp" always.

    exact: RIP is the instruction that comes next (in the innermost frame, or in interrupted code), no return address.
    """

    registers: Mapping[str, int]
    exact: bool = True


def unwind(state: State, tables: Tables, read: ReadMemory) -> State | None:
    """Return the caller's frame; None where the kernel's stack ends, or nothing is known."""
    try:
        return _unwind(state, tables, read)
    except (Unreadable, KeyError):
        return None


def _unwind(state: State, tables: Tables, read: ReadMemory) -> State | None:
    registers = state.registers
    pc = registers["rip"]
    # A call at the very end of a function has a return address behind the function.
    entry = tables.find(pc if state.exact or not pc else pc - 1, read)
    if entry is None or entry.kind in (Kind.UNDEFINED, Kind.END_OF_STACK):
        return None
    cfa = _stack_pointer(entry, registers, read)
    if cfa is None:
        return None
    if entry.kind is Kind.CALL:
        caller = {"rip": _word(cfa - 8, read), "rsp": cfa, "rbp": registers["rbp"]}
    else:
        caller = dict(registers) | _saved(entry.kind, cfa, read)
        if caller.pop("cs") & 3:
            return None
    if entry.bp_register not in (UNDEFINED, PREV_SP, BP):
        return None
    saved_bp = {PREV_SP: cfa + entry.bp_offset, BP: registers["rbp"] + entry.bp_offset}.get(entry.bp_register)
    if saved_bp is not None:
        caller["rbp"] = _word(saved_bp, read)
    if (caller["rip"], caller["rsp"]) == (pc, registers["rsp"]):
        return None
    return State(caller, exact=entry.signal)


def _stack_pointer(entry: Entry, registers: Mapping[str, int], read: ReadMemory) -> int | None:
    """Return the CFA. Raises KeyError where it is based on a register that is not known in this frame."""
    base = entry.sp_register
    if base == SP_INDIRECT:
        return _word(registers["rsp"], read) + entry.sp_offset & MASK
    if base == BP_INDIRECT:
        return _word(registers["rbp"] + entry.sp_offset, read)
    if base in (SP, BP):
        return registers[PLAIN[base]] + entry.sp_offset & MASK
    # The others are the stack pointer as it is, without an offset.
    return registers[PLAIN[base]] if base in PLAIN else None


def _saved(kind: Kind, at: int, read: ReadMemory) -> dict[str, int]:
    """Return the registers of the pt_regs or the interrupt's frame at `at`."""
    names = PT_REGS if kind is Kind.REGS else PT_REGS[IRET_FRAME:]
    return dict(zip(names, struct.unpack(f"<{len(names)}Q", read(at, 8 * len(names))), strict=True))


def _word(address: int, read: ReadMemory) -> int:
    return int.from_bytes(read(address & MASK, 8), "little")


def _bits(value: int, where: tuple[int, int]) -> int:
    first, size = where
    return value >> first & (1 << size) - 1
