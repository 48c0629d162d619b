"""The kernel's code from a trap to its handler, and where it is patched to call our handler instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.trapping import Entry, Trapping

DEPTH = 3
"""Calls within one another between a trap and its handler: deeper ones are for what is wrong, or for user mode."""


@dataclass(frozen=True, slots=True)
class TrapCalls:
    """handler: the address of the kernel's handler, which ours replaces.

    calls:   every instruction that leads there, each of the size of a branch: a call, or the first of that code itself.
    entry:   the state of the CPU where our handler begins.
    ways_in: all code between a trap and these calls: it must have no trap. Interrupts are off in it.
    readers: code that reads what a trap would overwrite: it must have no trap either. Threads sleep in it.
    trap:    a trap that this kernel does not use itself, where that is not the ISA's first.
    trapping: how code is made that takes such traps; None of a handler that takes others.
    beside:  entry code that this calls: a thread in it returns to it, or to where the thread came from.
    """

    handler: int
    calls: tuple[Insn, ...]
    entry: Entry
    ways_in: tuple[tuple[int, int], ...] = ()
    beside: tuple[tuple[int, int], ...] = ()
    readers: tuple[tuple[int, int], ...] = ()
    trap: bytes = b""
    trapping: Trapping | None = None


Originals = Mapping[int, bytes]
"""Original bytes where other probes have written, by address."""


def find(
    kernel: Kernel, isa: Isa, originals: Originals, handler: str, callers: Sequence[str]
) -> TrapCalls:
    """Return the calls, by the names of the handler and of the functions that call it. Raises OptprobeError."""
    to = kernel.symbols.address(handler)
    if to is None:
        raise OptprobeError(f"the kernel has no {handler}")
    code = [insn for name in callers for insn in code_at(kernel, isa, originals, kernel.address(name))]
    calls = [insn for insn in code if (insn.flow, insn.target) == (Flow.CALL, to)]
    if not calls or any(insn.size != isa.branch_size for insn in calls):
        raise OptprobeError(f"{' and '.join(callers)} does not call {handler}")
    return TrapCalls(to, tuple(calls), Entry(to), tuple(_ways_in(kernel, isa, originals, calls)))


def _ways_in(
    kernel: Kernel, isa: Isa, originals: Originals, calls: Sequence[Insn]
) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the code before these calls and of all that it calls or jumps to."""
    found = {bounds(kernel, call.address) for call in calls}
    code: list[Insn] = []
    for call in calls:
        start, _ = bounds(kernel, call.address)
        yield start, call.end
        code += [insn for insn in code_at(kernel, isa, originals, start) if insn.address < call.address]
    for _ in range(DEPTH):
        new = {bounds(kernel, target) for target in targets(kernel, code)} - found
        yield from sorted(new)
        found |= new
        code = [insn for start, _ in new for insn in code_at(kernel, isa, originals, start)]


def targets(kernel: Kernel, code: Iterable[Insn]) -> set[int]:
    """Return where `code` calls and jumps to in the kernel's own text.

    A target without a symbol is a running tracer's trampoline: the call there replaces a nop.
    """
    found = {insn.target for insn in code if insn.target is not None}
    return {target for target in found if kernel.symbols.at(target) is not None}


def code_at(kernel: Kernel, isa: Isa, originals: Originals, at: int) -> list[Insn]:
    """Return the code of the symbol around `at`, without our patches and the guest's own kprobes. Raises OptprobeError.
    """
    start, end = bounds(kernel, at)
    return isa.decode(original(kernel, isa, originals, start, end), start)


def original(kernel: Kernel, isa: Isa, originals: Originals, start: int, end: int) -> bytes:
    """Return the kernel's code without our patches and the guest's own kprobes. Raises OptprobeError."""
    code = bytearray(OriginalText(kernel, isa).read(start, end))
    for at, data in originals.items():
        if start <= at and at + len(data) <= end:
            code[at - start : at - start + len(data)] = data
    return bytes(code)


def bounds(kernel: Kernel, address: int) -> tuple[int, int]:
    """Return start and end of the symbol around an address. Raises OptprobeError."""
    at = kernel.symbols.at(address)
    if at is None or not at.size:
        raise OptprobeError(f"what code is at {address:#x} is not known")
    return address - at.offset, address - at.offset + at.size
