"""Walk the kernel's stack at a hit by its ORC tables: orc_unwind.py as statements of a program (handlers/ir.py).

    AT ─► orc_lookup ─► entries LOW … HIGH ─► the last that begins at AT or before ─► CFA ─► PC, SP, BP of the caller
Only stacks are read, between SP and the end of the stack that it is in, and in the thread's. Any other frame ends the
walk, and its callers are reported as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdb_optprobe.guest.linux.arch.base import WalkedFrom
from gdb_optprobe.guest.linux.arch.x86_64 import current
from gdb_optprobe.guest.linux.arch.x86_64.orc_unwind import (
    BP,
    BP_INDIRECT,
    ENTRY_SIZE,
    IRET_FRAME,
    LOOKUP_BLOCK,
    PREV_SP,
    PT_REGS,
    SP,
    SP_INDIRECT,
    UNDEFINED,
    Encoding,
    Kind,
    Tables,
)
from gdb_optprobe.guest.linux.current import PAGE, STACK_SIZE
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import (
    WORD,
    And,
    Assign,
    Break,
    Constant,
    Expr,
    Get,
    If,
    Load,
    Loop,
    Op,
    Or,
    Register,
    Set,
    Statement,
    Variable,
)
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.stack_walk import CODE, KNOWN, PC, WANTED, binary, lost, plus, word

_AT, _SP, _BP, _LIMIT, _CFA, _PLACE = (
    Variable(f"%walk.{name}") for name in ("at", "sp", "bp", "limit", "cfa", "place")
)
_LOW, _HIGH, _MIDDLE, _OFFSET, _ENTRY, _FLAGS = (
    Variable(f"%walk.{name}") for name in ("low", "high", "middle", "offset", "entry", "flags")
)
WIDTH = 4
"""Bytes of a code address, and of a place in orc_lookup."""
_FLAGS_AT = 4
"""The byte of an entry from which on are registers, type, end and signal."""
_USER = 3
"""Of CS: what only user mode has."""
_ROUNDS = 32
"""Of a search in the entries of a block; 2 ** 32 of them are not."""


@dataclass(frozen=True)
class OrcWalk:
    """A Walker. top: the end of the running thread's stack."""

    tables: Tables
    begin: Sequence[Statement]
    top: Expr | Missing

    @property
    def step(self) -> Sequence[Statement]:
        return (*self._find(), *self._frame(), *self._caller())

    def _find(self) -> Sequence[Statement]:
        """Set ENTRY to the bits of the entry for AT. Of a module's code the host looks for it, once a hit wants it: the
        tables of modules come and go.
        """
        tables = self.tables
        start, (ips, end) = tables.text[0], tables.ips
        table, blocks = tables.lookup
        count = (end - ips) // WIDTH
        block = plus(_scaled(binary(Op.LSHR, _OFFSET, LOOKUP_BLOCK.bit_length() - 1)), table)
        searched, span = LOOKUP_BLOCK * max(blocks - 1, 0), tables.text[1] - start
        begins = plus(Load(plus(_MIDDLE, ips), WIDTH, signed=True, mapped=True), _MIDDLE)
        half = binary(Op.LSHR, plus(plus(_LOW, _HIGH), WIDTH), 1)
        halved = binary(Op.AND, half, -WIDTH)
        place = binary(Op.LSHR, binary(Op.MUL, _LOW, ENTRY_SIZE), 2)
        low, high = (plus(place, tables.entries + offset) for offset in (0, _FLAGS_AT))
        bits = binary(Op.LSHL, Load(high, 2, signed=False, mapped=True), 32)
        # LOW, MIDDLE and HIGH are the offsets of 32 bits each in the table of code addresses.
        in_core = (
            If(
                binary(Op.LT, _OFFSET, min(searched, span)),
                (
                    Assign(_LOW, _scaled(Load(block, WIDTH, signed=False, mapped=True))),
                    Assign(_HIGH, _scaled(Load(plus(block, WIDTH), WIDTH, signed=False, mapped=True))),
                ),
                # The text of the boot is not in orc_lookup, and returned to by the first thread.
                (Assign(_LOW, Constant(0)), Assign(_HIGH, Constant(WIDTH * max(count - 1, 0)))),
            ),
            If(Or(binary(Op.GE, _HIGH, WIDTH * count), binary(Op.GT, _LOW, _HIGH)), lost()),
            Assign(_OFFSET, plus(_AT, -ips)),
            Loop(
                (
                    If(binary(Op.GE, _LOW, _HIGH), (Break(),)),
                    Assign(_MIDDLE, halved),
                    If(
                        fold.binary(Op.LE, begins, _OFFSET, 64, True),
                        (Assign(_LOW, _MIDDLE),),
                        (Assign(_HIGH, plus(_MIDDLE, -WIDTH)),),
                    ),
                ),
                most=_ROUNDS,
            ),
            Assign(_ENTRY, binary(Op.OR, Load(low, 4, signed=False, mapped=True), bits)),
        )
        want = If(binary(Op.EQ, _ENTRY, 0), (Set(CODE, (_AT,), (Constant(WANTED),)),))
        elsewhere = (Get(CODE, (_AT,), _ENTRY), If(binary(Op.LT, _ENTRY, KNOWN), (want, *lost())))
        return (Assign(_OFFSET, plus(_AT, -start)), If(binary(Op.LT, _OFFSET, span), in_core, elsewhere))

    def _frame(self) -> Sequence[Statement]:
        """Set CFA."""
        encoding = self.tables.encoding
        base = binary(Op.AND, _FLAGS, 15)
        by = {register: _number(encoding, register) for register in (SP, BP, SP_INDIRECT, BP_INDIRECT)}
        offset = fold.convert(_ENTRY, 16, True)
        otherwise: tuple[Statement, ...] = (If(_ends(encoding), (Break(),)), *lost())
        through_bp = (Assign(_PLACE, plus(_BP, offset)), *self._in_stack(_PLACE), Assign(_CFA, word(_PLACE)))
        through_sp = (*self._in_stack(_SP), Assign(_CFA, plus(word(_SP), offset)))
        found: tuple[Statement, ...] = otherwise
        for register, then in (
            (BP_INDIRECT, through_bp), (SP_INDIRECT, through_sp), (BP, (Assign(_CFA, plus(_BP, offset)),)),
            (SP, (Assign(_CFA, plus(_SP, offset)),)),
        ):  # fmt: skip
            found = (If(binary(Op.EQ, base, by[register]), then, found),)
        return (Assign(_FLAGS, fold.convert(binary(Op.LSHR, _ENTRY, 32), 16, False)), *found)

    def _caller(self) -> Sequence[Statement]:
        """Set PC, SP and BP to the caller's."""
        encoding = self.tables.encoding
        first, bits = encoding.type
        kind = binary(Op.AND, _FLAGS, (1 << bits) - 1 << first - 32)
        number = {known: encoding.kinds.index(known) << first - 32 for known in encoding.kinds}
        bp_register = binary(Op.AND, _FLAGS, 0xF0)
        saved = fold.convert(binary(Op.LSHR, _ENTRY, 16), 16, True)
        bp = If(
            binary(Op.NE, bp_register, _number(encoding, UNDEFINED) << 4),
            (
                If(
                    binary(Op.EQ, bp_register, _number(encoding, PREV_SP) << 4),
                    (Assign(_PLACE, plus(_CFA, saved)),),
                    (
                        If(binary(Op.NE, bp_register, _number(encoding, BP) << 4), lost()),
                        Assign(_PLACE, plus(_BP, saved)),
                    ),
                ),
                *self._in_stack(_PLACE),
                Assign(_BP, word(_PLACE)),
            ),
        )
        called = (
            Assign(_PLACE, plus(_CFA, -WORD)),
            *self._in_stack(_PLACE),
            Assign(PC, word(_PLACE)),
            Assign(_AT, plus(PC, -1)),
            bp,
            Assign(_SP, _CFA),
        )
        whole, part = (self._interrupted(bp, first_saved) for first_saved in (0, IRET_FRAME))
        chain: tuple[Statement, ...] = (If(_ends(encoding), (Break(),)), *lost())
        for known, then in ((Kind.REGS_PARTIAL, part), (Kind.REGS, whole), (Kind.CALL, called)):
            chain = (If(binary(Op.EQ, kind, number[known]), then, chain),)
        return chain

    def _interrupted(self, bp: Statement, first: int) -> tuple[Statement, ...]:
        """Return what takes the registers of a pt_regs at CFA, or of its end from the register `first` on."""

        def at(name: str) -> Expr:
            return plus(_CFA, WORD * (PT_REGS.index(name) - first))

        own = (Assign(_BP, word(at("rbp"))),) if not first else ()
        return (
            *self._in_stack(_CFA),
            Assign(_PLACE, at("ss")),
            *self._in_stack(_PLACE),
            If(binary(Op.AND, word(at("cs")), _USER), (Break(),)),
            *own,
            bp,
            Assign(_PLACE, word(at("rsp"))),
            Assign(PC, word(at("rip"))),
            Assign(_AT, PC),
            *self._in_stack(_PLACE),
            Assign(_SP, _PLACE),
        )

    def _in_stack(self, place: Variable) -> tuple[Statement, ...]:
        """Return what ends the walk unless a word at `place` can be read: it is further up in this stack, or in the
        thread's.
        """
        outside = Or(binary(Op.LT, place, _SP), binary(Op.GT, place, _LIMIT))
        if isinstance(self.top, Missing):
            return (If(outside, lost()),)
        below = binary(Op.SUB, plus(self.top, -WORD), place)
        return (
            If(
                outside,
                (
                    If(binary(Op.GT, below, STACK_SIZE - WORD), lost()),
                    Assign(_LIMIT, plus(self.top, -WORD)),
                ),
            ),
        )


def walker(kernel: Kernel, tables: Tables, place: WalkedFrom) -> OrcWalk:
    """Return the walk from a probed instruction, or from what has called the function there."""
    if not tables.lookup[0]:
        raise NoSuchKernel("this kernel has no orc_lookup, by which its ORC tables are searched")
    top = current.stack_top(kernel)
    found = current.current(kernel).frame
    if isinstance(found, Missing) or found.room is None:
        raise NoSuchKernel("how much of a stack can be read is not known")
    sp, bp, room = Register("rsp"), Register("rbp"), found.room
    if place.interrupted is not None:
        registers = place.interrupted.registers
        return OrcWalk(tables, _from_registers(current.interrupted(kernel) if registers is None else registers), top)
    if place.frame is not None:
        called = word(sp, place.frame)
        return OrcWalk(tables, start(called, plus(called, -1), plus(sp, place.frame + WORD), bp, room), top)
    if place.returned is not None:
        # Where the return address was, the trampoline has made room for it again.
        after = plus(sp, WORD)
        return OrcWalk(tables, start(place.returned, plus(place.returned, -1), after, bp, room), top)
    # As a kprobe has it: the address behind a breakpoint.
    pc = fold.constant(place.address + 1)
    return OrcWalk(tables, start(pc, fold.constant(place.address), sp, bp, room), top)


def start(pc: Expr, at: Expr, sp: Expr, bp: Expr, room: Expr) -> tuple[Statement, ...]:
    """Return what begins a walk. pc, sp, bp: of the innermost frame. at: the address that its entry is searched by.

    room: how many bytes from the stack pointer at the hit up can be read.
    """
    limit = Assign(_LIMIT, plus(Register("rsp"), plus(room, -WORD)))
    return (Assign(PC, pc), Assign(_AT, at), Assign(_SP, sp), Assign(_BP, bp), limit)


def _from_registers(registers: Expr) -> tuple[Statement, ...]:
    """Return what begins a walk at code that is interrupted, by its pt_regs; nowhere where that is a program's."""

    def saved(name: str) -> Expr:
        return word(_PLACE, WORD * PT_REGS.index(name))

    is_kernel = binary(Op.EQ, binary(Op.AND, saved("cs"), _USER), 0)
    page = binary(Op.OR, _SP, PAGE - 1)
    own = (
        Assign(PC, saved("rip")),
        Assign(_AT, PC),
        Assign(_SP, saved("rsp")),
        Assign(_BP, saved("rbp")),
        Assign(_LIMIT, plus(page, 1 - WORD)),
    )
    return (Assign(PC, Constant(0)), Assign(_PLACE, registers), If(And(_PLACE, is_kernel), own))


def _ends(encoding: Encoding) -> Expr:
    """Return whether the entry says that the stack ends here."""
    if encoding.end is not None:
        undefined = binary(Op.AND, _FLAGS, 15)
        bit = binary(Op.AND, _FLAGS, 1 << encoding.end[0] - 32)
        return And(binary(Op.EQ, undefined, _number(encoding, UNDEFINED)), bit)
    first, bits = encoding.type
    kind = binary(Op.AND, _FLAGS, (1 << bits) - 1 << first - 32)
    return binary(Op.EQ, kind, encoding.kinds.index(Kind.END_OF_STACK) << first - 32)


def _number(encoding: Encoding, register: int) -> int:
    """Return the number that a kernel has for a register; one that no entry has where it has none."""
    return encoding.registers.index(register) if register in encoding.registers else 1 << 8


def _scaled(index: Expr) -> Expr:
    """Return the offset of a place in a table of 32 bits each."""
    return binary(Op.LSHL, index, 2)
