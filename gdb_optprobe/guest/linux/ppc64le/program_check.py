"""Where a ppc64le kernel's entry code takes a program check, and where it has put registers by then.

    exc_virt_0x4700_program_check   std r9,128(r13) …; mfcr r9; mfsrr0 r11; mfsrr1 r12       0x700 where the MMU is off
    program_check_common            ld r10,32(r13); xori r10,r10,2; mtmsrd r10               from 0x700 alone
    program_check_common_virt       andi. r10,r12,16384   ◄── ours comes in here
                                    …                     r11, r12 and r9 go to the frame, as NIP, MSR and CR
                                    ld r9,128(r13)        what vectors have saved in the paca
                                    std r9,184(r1)        goes there too
                                    addi r3,r1,112        struct pt_regs
                                    bl program_check_exception
    interrupt_return_srr_kernel     lbz r4,2353(r13)      whether SRR0 and SRR1 hold what is returned to
                                    …
                                    mtsrr0 r11            not where that is 0

(arch/powerpc/kernel/exceptions-64s.S, interrupt_64.S.) Offsets are read off this code, where all of it agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.trap_calls import Originals, TrapCalls, code_at
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.abi import CTR
from gdb_optprobe.isa.ppc64le.uses import CTR_BIT, uses_of
from gdb_optprobe.isa.ppc64le.words import opcode, ra, rt, simm, word_of
from gdb_optprobe.isa.trapping import Entry

ENTRY, REAL_ENTRY = "program_check_common_virt", "program_check_common"
HANDLER, WAY_BACK = "program_check_exception", "interrupt_return_srr_kernel"
VECTORS = ((0x700, 0x800), (0x4700, 0x4800))
ADDI, LBZ, STB, LD, STD = 14, 34, 38, 58, 62
SP, FRAME, CR, FREE, SRR0, SRR1, PACA, CTR_NUMBER = 1, 3, 9, 10, 11, 12, 13, CTR_BIT.bit_length() - 1
NIP, MSR, CCR = 256, 264, 304  # in struct pt_regs (uapi/asm/ptrace.h), like what follows
SLOTS = {CTR: 280, **{f"r{number}": 8 * number for number in range(9, 14)}}
MTSRR0, RT_FIELD = 0x7C1A_03A6, 31 << 21
LOCAL = 8
"""Of a function's local entry from its symbol."""
NEAR = 8
"""Instructions before SRR0 is written, among which is seen whether it must be."""


def find(kernel: Kernel, originals: Originals) -> TrapCalls:
    """Raises OptprobeError."""
    code, way_back = (_code(kernel, originals, name) for name in (ENTRY, WAY_BACK))
    entry = list(takewhile(lambda insn: insn.flow is not Flow.CALL, code))
    handler = kernel.symbols.address(HANDLER)
    called = code[len(entry)].target if len(entry) < len(code) else None
    frame = next((simm(word_of(i.data)) for i in entry if _is(i, ADDI, SP) and rt(word_of(i.data)) == FRAME), None)
    if handler is None or called not in (handler, handler + LOCAL) or frame is None:
        raise OptprobeError(f"{ENTRY} does not lead to {HANDLER}")
    if not _is_as_expected(entry, frame):
        raise OptprobeError(f"{ENTRY} begins in a way that is not known")
    saved = {name: _saved(entry, frame + at) for name, at in SLOTS.items()}
    first = entry[0]
    return TrapCalls(
        first.address,
        (first,),
        Entry(first.end, first, saved, _stale(entry, way_back)),
        tuple(_ways_in(kernel, first)),
    )


def _code(kernel: Kernel, originals: Originals, name: str) -> Sequence[Insn]:
    at = kernel.symbols.address(name)
    if at is None:
        raise OptprobeError(f"the kernel has no {name}")
    return code_at(kernel, PPC64LE, originals, at)


def _ways_in(kernel: Kernel, first: Insn) -> Iterator[tuple[int, int]]:
    for base in (0, kernel.address("_stext")):
        yield from ((base + start, base + end) for start, end in VECTORS)
    yield min(kernel.symbols.address(REAL_ENTRY) or first.address, first.address), first.end


def _is_as_expected(entry: Sequence[Insn], frame: int) -> bool:
    """Whether r9, r11 and r12 are what they must be at its start, and r10 and CTR nothing that is read."""
    kept = all(
        any(_is_stored(insn, register, frame + at) for insn in _while_kept(entry, register))
        for register, at in ((CR, CCR), (SRR0, NIP), (SRR1, MSR))
    )
    return kept and PPC64LE.moves_as_it_is(entry[0]) and not _is_read(entry, FREE) and not _is_read(entry, CTR_NUMBER)


def _is_read(entry: Sequence[Insn], number: int) -> bool:
    """Whether a register (as in isa/ppc64le/uses.py) is read before it is overwritten; also where that is not known."""
    for insn in entry:
        uses = uses_of(insn.data)
        if uses is None or uses.reads >> number & 1:
            return True
        if uses.kills >> number & 1:
            return False
    return False


def _while_kept(code: Sequence[Insn], register: int) -> Iterator[Insn]:
    """Up to what overwrites a general register, as the code stands."""
    for insn in code:
        yield insn
        uses = uses_of(insn.data)
        if uses is None or uses.kills >> register & 1:
            return


def _saved(entry: Sequence[Insn], slot: int) -> int:
    """Where in the paca it is what goes to the frame there. Raises OptprobeError."""
    loads = ((at, rt(word_of(insn.data))) for at, insn in enumerate(entry) if _is(insn, LD, PACA))
    found = {
        _offset(entry[at]) & ~3
        for at, register in loads
        if any(_is_stored(insn, register, slot) for insn in _while_kept(entry[at + 1 :], register))
    }
    if len(found) != 1:
        raise OptprobeError(f"where {ENTRY} finds what vectors have saved is not known")
    return found.pop()


def _stale(entry: Sequence[Insn], way_back: Sequence[Insn]) -> int:
    """The byte of the paca that is set on the way in, and looked at before SRR0 is written. Raises OptprobeError."""
    ends = [at for at, insn in enumerate(way_back) if word_of(insn.data) & ~RT_FIELD == MTSRR0]
    looked_at = {_offset(insn) for at in ends for insn in way_back[max(0, at - NEAR) : at] if _is(insn, LBZ, PACA)}
    found = {_offset(insn) for insn in entry if _is(insn, STB, PACA)} & looked_at
    if len(found) != 1:
        raise OptprobeError(f"how {WAY_BACK} returns is not known")
    return found.pop()


def _is(insn: Insn, form: int, base: int) -> bool:
    word = word_of(insn.data)
    return opcode(word) == form and ra(word) == base


def _is_stored(insn: Insn, register: int, slot: int) -> bool:
    return _is(insn, STD, SP) and rt(word_of(insn.data)) == register and _offset(insn) == slot


def _offset(insn: Insn) -> int:
    return simm(word_of(insn.data))
