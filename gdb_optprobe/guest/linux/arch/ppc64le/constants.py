"""Names of the kernel's data where kallsyms has none: from the constants in the functions that use them.

    addis r9,r2,347      an address, relative to the TOC
    addi  r9,r9,32512
    cmpld r9,r10

guest/linux/derived_data.py has the functions of every ISA. Here are those of ppc64le alone:

    do_barrier_nospec_fixups      __start___barrier_nospec_fixup, __stop___barrier_nospec_fixup
    search_kernel_restart_table   __start___restart_table, __stop___restart_table
    udelay                        tb_ticks_per_usec, by a load
    sched_clock                   boot_tb, tb_to_ns_scale, tb_to_ns_shift, by loads
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from struct import Struct

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le.sched_clock import sched_clock
from gdb_optprobe.guest.linux.arch.ppc64le.threads import Layout
from gdb_optprobe.guest.linux.derived_data import LARGEST_FUNCTION, Constants, Derived, DerivedNames, sources, table
from gdb_optprobe.guest.linux.kernel import CHUNK, MASK, NoSuchKernel
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.fields import BCCTR, BO_NO_CTR, CR_OPS, opcode, ra, rt, simm, word_of, xo
from gdb_optprobe.isa.ppc64le.register_effects import effects_of

EXCEPTION_ROW = Struct("<ii")
"""arch/powerpc/include/asm/extable.h: insn and fixup, each relative to itself."""

LOADS_AND_STORES = range(32, 56)
CLOBBERED_BY_CALLS = (0, *range(3, 13))
TICKS_A_MICROSECOND = range(1, 10_000)
BARRIER_ROW = Struct("<q")
"""asm/feature-fixups.h, NOSPEC_BARRIER_FIXUP_SECTION: the address of a barrier or its nop, relative to itself."""
RESTART_ROW = Struct("<QQQ")
"""asm/interrupt.h, struct restart_table_entry: start, end, and where it continues."""


def by_abi(_: Insn) -> Collection[int]:
    """Return the general registers that the callee of a call may overwrite (ELFv2 ABI, 2.2.2)."""
    return CLOBBERED_BY_CALLS


def constants(code: Sequence[Insn], toc: int, clobbered: Callable[[Insn], Collection[int]] = by_abi) -> Constants:
    """Return the addresses that code makes of r2 and of numbers. It is read from start to end, without its branches.
    clobbered: the registers that a call overwrites.
    """
    known: dict[int, int] = {2: toc}
    made: dict[int, None] = {}
    used: dict[int, None] = {}
    for insn in code:
        word = word_of(insn.data)
        value: int | None = None
        base = known.get(ra(word)) if ra(word) else None
        match opcode(word):
            case 14 if base is not None and rt(word) != 2:
                value = base + simm(word) & MASK
                made[value] = None
            case 15 if base is not None and rt(word) != 2:
                value = base + (simm(word) << 16) & MASK
            case 58 if base is not None:
                used[base + simm(word & ~3) & MASK] = None
            case op if op in LOADS_AND_STORES and base is not None:
                used[base + simm(word) & MASK] = None
        if insn.flow in (Flow.CALL, Flow.INDIRECT_CALL):
            for register in clobbered(insn):
                known.pop(register, None)
        elif (uses := effects_of(insn.data)) is not None:
            for register in [number for number in known if number != 2 and uses.kills >> number & 1]:
                del known[register]
        if value is not None:
            known[rt(word)] = value
    return Constants(tuple(made), tuple(used))


@dataclass
class DerivedSymbols(DerivedNames):
    """Has the names of guest/linux/derived_data.py, and those of ppc64le.

    layout: where this kernel keeps its threads, once it is known (derive.py): it is proven by a walk of them all.
    """

    layout: Layout | None = None
    _clobbered: dict[int, Collection[int]] = field(default_factory=dict)
    _codes: dict[int, Sequence[Insn]] = field(default_factory=dict)

    def address(self, name: str) -> int | None:
        found = self.symbols.address(name)
        if found is None and name in _SOURCES:
            if name not in self._known:
                self._known.update(_SOURCES[name](self))
            return self._known.get(name)
        return found

    def constants_of(self, function: str) -> Constants:
        """Return the constants of a function; none where there is no such function, or its TOC is not known."""
        try:
            code = self.code(function)
        except NoSuchKernel:
            return Constants((), ())
        toc = PPC64LE.toc(code[0].address, {insn.address: insn for insn in code}) if code else None
        return constants(code, toc, self.clobbered) if toc is not None else Constants((), ())

    def code(self, function: str) -> Sequence[Insn]:
        """Return the instructions of a function. Raises NoSuchKernel where the kernel has no such function."""
        if (bounds := self.bounds_of(function)) is None:
            raise NoSuchKernel(f"this kernel has no types (BTF), and no {function} from which to derive them")
        return self._decode(*bounds)

    def overwritten(self, insn: Insn, held: Iterable[int], unknown: bool = True) -> list[int]:
        """Return the registers among `held` that the instruction overwrites.
        unknown: whether an instruction that is not known overwrites all.
        """
        if insn.flow in (Flow.CALL, Flow.INDIRECT_CALL):
            clobbered = self.clobbered(insn)
            return [register for register in held if register in clobbered]
        uses = effects_of(insn.data)
        return [register for register in held if (unknown if uses is None else uses.kills >> register & 1)]

    def clobbered(self, call: Insn) -> Collection[int]:
        """Return the general registers that a call overwrites: by the ABI, or by the callee's code if that calls
        nothing.
        Entry code is not compiled, and what the kernel patches calls of into it (flush_branch_caches) keeps registers
        that the ABI does not.
        """
        if call.target is None:
            return CLOBBERED_BY_CALLS
        if call.target not in self._clobbered:
            self._clobbered[call.target] = self._clobbered_by(call.target)
        return self._clobbered[call.target]

    def _clobbered_by(self, function: int) -> Collection[int]:
        start, end = self.symbols.function_bounds(function) or (0, 0)
        if start != function or end - start > LARGEST_FUNCTION:
            return CLOBBERED_BY_CALLS
        try:
            code = self._decode(start, end)
        except NoSuchKernel:
            return CLOBBERED_BY_CALLS
        by_address, kills, reached, ahead = {insn.address: insn for insn in code}, 0, set[int](), [start]
        while ahead:
            at = ahead.pop()
            if at in reached:
                continue
            reached.add(at)
            insn = by_address.get(at)
            uses = effects_of(insn.data) if insn is not None else None
            if insn is None or uses is None or _leaves(insn):
                return CLOBBERED_BY_CALLS
            kills |= uses.kills
            ahead += [target for target in (insn.target,) if target is not None]
            ahead += [insn.end] if insn.flow not in (Flow.JUMP, Flow.RETURN) else []
        return [register for register in range(32) if kills >> register & 1]

    def _decode(self, start: int, end: int) -> Sequence[Insn]:
        """Decode one function. What is derived from it does not change, so it is read once."""
        if start not in self._codes:
            try:
                self._codes[start] = PPC64LE.decode(self.original(start, end), start)
            except OptprobeError as error:
                raise NoSuchKernel(f"the code at {start:#x} cannot be read: {error.message}") from None
        return self._codes[start]


def _leaves(insn: Insn) -> bool:
    """Return whether it branches to an address that is not in its encoding.
    A bcctr that counts by the register it jumps by is invalid (Power ISA 3.1B, Book I, 2.4): the kernel uses it to
    flush the cache of branches.
    """
    word = word_of(insn.data)
    flushes = opcode(word) == CR_OPS and xo(word) == BCCTR and not rt(word) & BO_NO_CTR
    return insn.flow in (Flow.INDIRECT_CALL, Flow.INDIRECT_JUMP, Flow.SYSTEM, Flow.TRAP) and not flushes


def _restarts(symbols: DerivedSymbols) -> Derived:
    """Derive a table of addresses of text."""
    first, last = "__start___restart_table", "__stop___restart_table"
    for start, end in permutations(symbols.constants_of("search_kernel_restart_table").made, 2):
        if not 0 < end - start <= CHUNK or (end - start) % RESTART_ROW.size:
            continue
        try:
            rows = [*RESTART_ROW.iter_unpack(symbols.memory.read(start, end - start))]
        except OptprobeError:
            continue
        if all(row[0] < row[1] and all(map(symbols.in_text, row)) for row in rows):
            return {first: start, last: end}
    return {first: None, last: None}


def _ticks(symbols: DerivedSymbols) -> Derived:
    """Derive the only variable that `udelay` reads; it multiplies by it."""
    used = symbols.constants_of("udelay").used
    plausible = len(used) == 1 and symbols.word(used[0]) in TICKS_A_MICROSECOND
    return {"tb_ticks_per_usec": used[0] if plausible else None}


def _sched_clock(symbols: DerivedSymbols) -> Derived:
    """Derive the three variables that `sched_clock` reads: those in the one order in which it has the clock's rate."""
    names, used = ("boot_tb", "tb_to_ns_scale", "tb_to_ns_shift"), symbols.constants_of("sched_clock").used
    rate = (symbols.address("tb_ticks_per_usec") and symbols.word(symbols.address("tb_ticks_per_usec") or 0)) or 0
    found = []
    for order in permutations(used, 3) if len(used) == 3 else ():
        begun, scale, shift = map(symbols.word, order)
        if begun is not None and scale is not None and shift is not None:
            clock = sched_clock(begun, scale, shift & 0xFFFF_FFFF)
            if clock is not None and clock.is_of(rate * 1_000_000):
                found.append(order)
    return dict(zip(names, found[0] if len(found) == 1 else (None,) * 3, strict=True))


_BARRIER = table(
    "__start___barrier_nospec_fixup", "__stop___barrier_nospec_fixup", "do_barrier_nospec_fixups", BARRIER_ROW, 1
)


_SOURCES: Mapping[str, Callable[[DerivedSymbols], Derived]] = {
    **sources(EXCEPTION_ROW),
    "__start___barrier_nospec_fixup": _BARRIER,
    "__stop___barrier_nospec_fixup": _BARRIER,
    "__start___restart_table": _restarts,
    "__stop___restart_table": _restarts,
    "tb_ticks_per_usec": _ticks,
    "boot_tb": _sched_clock,
    "tb_to_ns_scale": _sched_clock,
    "tb_to_ns_shift": _sched_clock,
}
