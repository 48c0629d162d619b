"""The ORC tables of a kernel, once it is known how this build writes their entries.

The kernel's types have the positions of an entry's bits, but not the numbers of the registers, and not every kernel has
types. So functions all over the text are decoded, and what their entries must say is derived from their code
(orc_layout.py), once in each session.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.linux.arch.base import Facts
from gdb_optprobe.guest.linux.arch.x86_64 import orc_layout, orc_unwind
from gdb_optprobe.guest.linux.arch.x86_64.orc_unwind import Encoding, Tables
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.isa.base import ReadMemory
from gdb_optprobe.isa.x86_64 import X86_64

FACT = "numbers of registers in ORC"
FUNCTIONS = 96
"""The number of functions, spread over the text, that are decoded."""
PROLOGUE = 64
"""Bytes of a function that are looked at, at the most."""
PIECE = 1 << 10
"""What is read at once: entries that are asked for lie together."""
HINT = "backtraces end where this matters; counting, conditions and `$retval` do without"


def tables(kernel: Kernel, facts: Facts) -> Tables:
    """Return the kernel's tables. Raises OptprobeError where it has none, or none that agree with its code."""
    ips = kernel.range("__start_orc_unwind_ip", "__stop_orc_unwind_ip")
    entries = kernel.symbols.address("__start_orc_unwind")
    if not ips[0] or entries is None:
        raise NoSuchKernel("this kernel has no tables to unwind its stack by (CONFIG_UNWINDER_ORC)", HINT)
    lookup, end = kernel.range("orc_lookup", "orc_lookup_end")
    span = (kernel.address("_stext"), max(kernel.address("_etext"), kernel.address("_einittext")))
    found = Tables(span, ips, entries, (lookup, (end - lookup) // 4))
    return Tables(span, ips, entries, found.lookup, _encoding(kernel, facts, found))


def _encoding(kernel: Kernel, facts: Facts, found: Tables) -> Encoding:
    candidates = _candidates(facts)
    numbers = facts.fact(FACT)
    if isinstance(numbers, list) and len(numbers) > 1 and all(isinstance(number, int) for number in numbers):
        which, *registers = numbers
        if 0 <= which < len(candidates):
            return candidates[which].numbered(registers)
    witnesses = list(_witnesses(kernel, found))
    chosen = orc_layout.choose_encoding(candidates, witnesses)
    if chosen is None:
        raise NoSuchKernel("the tables to unwind this kernel's stack by (ORC) are of an unknown layout", HINT)
    which = next(at for at, candidate in enumerate(candidates) if candidate.numbered(chosen.registers) == chosen)
    facts.learn(FACT, [which, *chosen.registers])
    return chosen


def _candidates(facts: Facts) -> tuple[Encoding, ...]:
    """Return the encodings to try: the one by the kernel's own types; without types, all that are known."""
    try:
        return (orc_unwind.encoding(facts.bits("orc_entry")),)
    except (OptprobeError, KeyError):
        return orc_unwind.MODERN, orc_unwind.LEGACY


def _witnesses(kernel: Kernel, found: Tables) -> Iterator[orc_layout.Witness]:
    read = _in_pieces(kernel.memory.read)
    start, end = kernel.range("_stext", "_etext")
    starts = {
        bounds[0]: min(bounds[1] - bounds[0], PROLOGUE)
        for at in range(start, end, max(1, (end - start) // FUNCTIONS))
        if (bounds := kernel.symbols.function_bounds(at)) is not None
    }
    for function, size in starts.items():
        try:
            if orc_layout.is_entered(found.raw(function, read)):
                insns = X86_64.decode(read(function, size), function)
                entries = ((entry, found.raw(at, read)) for at, entry in orc_layout.expected(insns))
                yield from ((entry, data) for entry, data in entries if data is not None)
        except Unreadable:
            continue


def _in_pieces(read: ReadMemory) -> ReadMemory:
    """Return a reader that reads each piece of memory once. No piece crosses a page, so a read that would succeed
    succeeds in pieces too.
    """
    known: dict[int, bytes] = {}

    def piece(at: int) -> bytes:
        if at not in known:
            known[at] = read(at, PIECE)
        return known[at]

    def found(address: int, size: int) -> bytes:
        first = address - address % PIECE
        return b"".join(map(piece, range(first, address + size, PIECE)))[address - first :][:size]

    return found
