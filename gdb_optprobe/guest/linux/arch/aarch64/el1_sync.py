"""Where an aarch64 kernel's entry code takes the synchronous exceptions of the kernel itself, traps among them.

    vectors+0x200   sub sp, sp, #336           room for struct pt_regs; a table of vectors for each way that a
                    add sp, sp, x0             processor is kept from speculating has the same
                    sub x0, sp, x0             whether the stack overflows, with no register to spare
                    tbnz w0, #14, …
                    sub x0, sp, x0
                    sub sp, sp, x0
                    b el1h_64_sync
    el1h_64_sync    stp x0, x1, [sp] ◄── our code runs before this
                    stp x2, x3, [sp, #16]
                    …                          up to x17 here; then ELR_EL1 and SPSR_EL1
                    bl el1h_64_sync_handler    reads ESR_EL1; what it calls reads FAR_EL1

(arch/arm64/kernel/entry.S, kernel_ventry and kernel_entry; entry-common.c.) A trap overwrites these registers of the
system, so that there must be none before they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.areas import entry_text
from gdb_optprobe.guest.linux.arch.aarch64.vectors import EACH, frame_size
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.trap_calls import Originals, TrapCalls, bounds, original
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.fields import BL, B, branch_offset, is_b, is_tb, rd
from gdb_optprobe.isa.trapping import Entry

ENTRY = "el1h_64_sync"
SP, SIZE = 31, 4
NO_ROOM = 0x8B20_63FF, 0xCB20_63E0, None, 0xCB20_63E0, 0xCB20_63FF
"""How a vector finds out whether the stack overflows; None is `tbnz w0`. Kernels without VMAP_STACK have none of it."""
SAVED = tuple(0xA900_0000 | number << 15 | number + 1 << 10 | SP << 5 | number for number in range(0, 18, 2))
"""stp of each pair of registers, in its place in struct pt_regs."""
SYNDROMES = frozenset((0xD538_4000, 0xD538_4020, 0xD538_5200, 0xD538_6000))
"""mrs x0 of SPSR_EL1, ELR_EL1, ESR_EL1 and FAR_EL1."""
EVENTS = "__sdei_asm_handler"
"""What the firmware interrupts the kernel with."""
DEPTH = 2
"""Calls from entry code to what reads them."""

Code = Sequence[tuple[int, int]]
"""Addresses and words."""


def find(kernel: Kernel, originals: Originals) -> TrapCalls:
    """Return where the kernel handles traps. Raises OptprobeError."""
    start, end = entry_text(kernel)
    at, frame = kernel.address(ENTRY), frame_size(kernel)
    entry = _words(kernel, originals, start, end)
    if not start <= at < end or tuple(word for place, word in entry if 0 <= place - at < SIZE * len(SAVED)) != SAVED:
        raise OptprobeError(f"{ENTRY} begins with code that is not known")
    slots = {place & -EACH for place, target in _branches(entry, B) if target == at}
    vectors = [_vector(entry, slot, at, frame) for slot in sorted(slots)]
    if not vectors:
        raise OptprobeError(f"no vector leads to {ENTRY}")
    (first,) = AARCH64.decode(original(kernel, AARCH64, originals, at, at + SIZE), at)
    readers = tuple(_readers(kernel, originals, entry))
    return TrapCalls(at, (first,), Entry(first.end, first, frame=frame), (*vectors, (at, first.end)), readers=readers)


def _vector(entry: Code, slot: int, to: int, frame: int) -> tuple[int, int]:
    """Return start and end of a vector. Raises OptprobeError where it does more than is known."""
    code = [(at, word) for at, word in entry if slot <= at < slot + EACH]
    leaving = [at for at, target in _branches(code, B) if target == to]
    first, *between = [word for at, word in code if at < leaving[0]]
    expected = 0xD100_03FF | frame << 10
    known = len(between) == len(NO_ROOM) and all(map(_is_like, between, NO_ROOM))
    if first != expected or (between and not known):
        raise OptprobeError(f"the vector at {slot:#x} does more than is known before {ENTRY}")
    return slot, leaving[-1] + SIZE


def _is_like(word: int, known: int | None) -> bool:
    return is_tb(word) and rd(word) == 0 if known is None else word == known


def _readers(kernel: Kernel, originals: Originals, entry: Code) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of functions that read what an exception has left in the CPU, and of those that they call
    before. Raises OptprobeError where none does.
    """
    firmware = kernel.symbols.address(EVENTS)
    roots = entry if firmware is None else [*entry, *_words(kernel, originals, *bounds(kernel, firmware))]
    called, seen = _called(kernel, roots), set[tuple[int, int]]()
    found: dict[tuple[int, int], None] = {}
    for _ in range(DEPTH):
        new = {bounds(kernel, at) for at in called} - seen
        seen |= new
        called = set()
        for function in sorted(new):
            code = _words(kernel, originals, *function)
            reads = [at for at, word in code if word & ~31 in SYNDROMES]
            called.update(_called(kernel, code))
            if reads:
                before = [each for each in code if each[0] < reads[-1]]
                found |= dict.fromkeys((function, *(bounds(kernel, at) for at in _called(kernel, before))))
    if not found:
        raise OptprobeError(f"what {ENTRY} leads to does not read which exception it was")
    start, end = entry[0][0], entry[-1][0]
    yield from (function for function in found if not start <= function[0] <= end)


def _called(kernel: Kernel, code: Code) -> set[int]:
    """Return where code calls. What has no symbol is a running tracer's."""
    found = {target for _, target in _branches(code, BL)}
    return {target for target in found if (at := kernel.symbols.at(target)) is not None and at.size}


def _branches(code: Code, kind: int) -> Iterator[tuple[int, int]]:
    """Yield where `b`, or `bl`, are, and where they lead."""
    for at, word in code:
        if is_b(word) and word >> 31 == kind >> 31:
            yield at, at + branch_offset(word)


def _words(kernel: Kernel, originals: Originals, start: int, end: int) -> Code:
    data = original(kernel, AARCH64, originals, start, end)
    return [(start + at, int.from_bytes(data[at : at + SIZE], "little")) for at in range(0, len(data), SIZE)]
