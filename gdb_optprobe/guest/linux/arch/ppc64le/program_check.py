"""Where a ppc64le kernel's entry code takes a program check, and where it has put registers by then.

    exc_virt_0x4700_program_check   std r9,128(r13) …; mfcr r9; mfsrr0 r11; mfsrr1 r12       0x700 where the MMU is off
    program_check_common            ld r10,32(r13); xori r10,r10,2; mtmsrd r10               from 0x700 alone
    program_check_common_virt       andi. r10,r12,16384   ◄── our code runs here
                                    …                     r11, r12 and r9 go to the frame, as NIP, MSR and CR
                                    ld r9,128(r13)        what vectors have saved in the paca
                                    std r9,184(r1)        goes there too
                                    addi r3,r1,112        struct pt_regs
                                    bl program_check_exception
    interrupt_return_srr_kernel     lbz r4,2353(r13)      whether SRR0 and SRR1 are still valid
                                    …
                                    mtsrr0 r11            not where that is 0

(arch/powerpc/kernel/exceptions-64s.S, interrupt_64.S.) Offsets are read off this code, where all of it agrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.trap_calls import Originals, TrapCalls, code_at
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.abi import CTR
from gdb_optprobe.isa.ppc64le.fields import opcode, ra, rt, simm, word_of
from gdb_optprobe.isa.ppc64le.register_effects import CTR_BIT, effects_of
from gdb_optprobe.isa.trapping import Entry

ENTRY, REAL_ENTRY = "program_check_common_virt", "program_check_common"
HANDLER, WAY_BACK = "program_check_exception", "interrupt_return_srr_kernel"
VECTORS = ((0x700, 0x800), (0x4700, 0x4800))
ADDI, LBZ, STB, LD, STD = 14, 34, 38, 58, 62
SP, FRAME, CR, FREE, SRR0, SRR1, PACA, CTR_NUMBER = 1, 3, 9, 10, 11, 12, 13, CTR_BIT.bit_length() - 1
R1, NIP, MSR, CCR, PPR = 8, 256, 264, 304, 352  # in struct pt_regs (asm/ptrace.h), like what follows
SLOTS = {CTR: 280, **{f"r{number}": 8 * number for number in range(9, 14)}}
MTSRR0, RT_FIELD = 0x7C1A_03A6, 31 << 21
LOCAL = 8
"""Of a function's local entry from its symbol."""
NEAR = 8
"""Instructions before SRR0 is written, among which is seen whether it must be."""


@dataclass(frozen=True, slots=True)
class Common:
    """entry: the code before the call of the handler. frame: from r1 to struct pt_regs. saved: see Entry."""

    entry: Sequence[Insn]
    frame: int
    saved: Mapping[str, int]

    @property
    def priority(self) -> int | None:
        """Where vectors have put PPR; None where they leave it alone: a processor's that has none."""
        try:
            return _saved(self.entry, self.frame + PPR)
        except OptprobeError:
            return None


def find(kernel: Kernel, originals: Originals) -> TrapCalls:
    """Return where the kernel handles traps. Raises OptprobeError."""
    found = common(kernel, originals)
    first = found.entry[0]
    if not _is_as_expected(found.entry, found.frame):
        raise OptprobeError(f"{ENTRY} begins with code that is not known")
    stale = _stale(found.entry, _code(kernel, originals, WAY_BACK))
    entry = Entry(first.end, first, found.saved, stale)
    return TrapCalls(first.address, (first,), entry, tuple(ways_in(kernel, first)))


def of_users(kernel: Kernel, originals: Originals) -> tuple[Common, Insn]:
    """Return the common code, and the instruction that gives program checks of user mode their stack.
    There r9 to r12 are what they are at the beginning, but r10 is the user's r1. Raises OptprobeError.
    """
    found = common(kernel, originals)
    entry = found.entry
    skipped = [
        number
        for number in range(1, len(entry))
        if _is(entry[number], LD, PACA) and rt(word_of(entry[number].data)) == SP
        and (entry[number - 1].flow, entry[number - 1].target) == (Flow.BRANCH, entry[number].end)
    ]  # fmt: skip
    expected = ((CR, CCR), (SRR0, NIP), (SRR1, MSR), (FREE, R1))
    if len(skipped) != 1 or not _keeps(entry[skipped[0] :], expected, found.frame):
        raise OptprobeError(f"where {ENTRY} takes a program check of user mode is not known")
    return found, entry[skipped[0]]


def common(kernel: Kernel, originals: Originals) -> Common:
    """Return the code before the handler's call. Raises OptprobeError."""
    code = _code(kernel, originals, ENTRY)
    entry = list(takewhile(lambda insn: insn.flow is not Flow.CALL, code))
    handler = kernel.symbols.address(HANDLER)
    called = code[len(entry)].target if len(entry) < len(code) else None
    frame = next((simm(word_of(i.data)) for i in entry if _is(i, ADDI, SP) and rt(word_of(i.data)) == FRAME), None)
    if handler is None or called not in (handler, handler + LOCAL) or frame is None:
        raise OptprobeError(f"{ENTRY} does not lead to {HANDLER}")
    return Common(entry, frame, {name: _saved(entry, frame + at) for name, at in SLOTS.items()})


def _code(kernel: Kernel, originals: Originals, name: str) -> Sequence[Insn]:
    at = kernel.symbols.address(name)
    if at is None:
        raise OptprobeError(f"the kernel has no {name}")
    return code_at(kernel, PPC64LE, originals, at)


def ways_in(kernel: Kernel, first: Insn) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of all code that runs between a program check and `first`, with `first`."""
    for base in (0, kernel.address("_stext")):
        yield from ((base + start, base + end) for start, end in VECTORS)
    yield min(kernel.symbols.address(REAL_ENTRY) or first.address, first.address), first.end


def _is_as_expected(entry: Sequence[Insn], frame: int) -> bool:
    """Return whether r9, r11 and r12 have their values at the start, and r10 and CTR are not read."""
    kept = _keeps(entry, ((CR, CCR), (SRR0, NIP), (SRR1, MSR)), frame)
    return kept and PPC64LE.moves_as_it_is(entry[0]) and not _is_read(entry, FREE) and not _is_read(entry, CTR_NUMBER)


def _keeps(entry: Sequence[Insn], registers: Iterable[tuple[int, int]], frame: int) -> bool:
    """Return whether each register goes to its place in struct pt_regs."""
    return all(
        any(_is_stored(insn, register, frame + at) for insn in _while_kept(entry, register))
        for register, at in registers
    )


def _is_read(entry: Sequence[Insn], number: int) -> bool:
    """Return whether a register (of isa/ppc64le/register_effects.py) is or may be read before it is overwritten."""
    for insn in entry:
        uses = effects_of(insn.data)
        if uses is None or uses.reads >> number & 1:
            return True
        if uses.kills >> number & 1:
            return False
    return False


def _while_kept(code: Sequence[Insn], register: int) -> Iterator[Insn]:
    """Yield the instructions, in order of address, up to one that overwrites a general register."""
    for insn in code:
        yield insn
        uses = effects_of(insn.data)
        if uses is None or uses.kills >> register & 1:
            return


def _saved(entry: Sequence[Insn], slot: int) -> int:
    """Return the offset in the paca of the value that goes to that slot of the frame. Raises OptprobeError."""
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
    """Return the offset of the paca's byte that is set on the way in and read before SRR0 is written. Raises
    OptprobeError.
    """
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
