"""The guest's own kprobes: the bytes beneath their breakpoints and jumps, and where they may write more of them.

    kprobe_table ─► 64 lists of struct kprobe, by hash_ptr(addr) (kernel/kprobes.c)
                    │ addr   ─► text: CC …      the byte beneath is `opcode`
                    │ opcode               or   E9 rel32 to optinsn.insn: beneath are `opcode` and optinsn.copied_insn
                    └ pre_handler          or   the original, where it is registered and not armed
    aggr_pre_handler: the kprobe is the first member of a struct optimized_kprobe. Its jump may come, or come back, at
    any time, over the optinsn.size bytes of the instructions that it has copied; without a size, over one instruction.

As recover_probed_instruction() (arch/x86/kernel/kprobes/core.c) has it; on other ISAs opcode and branch have one size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from struct import iter_unpack

from gdb_optprobe.budget import Budget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import MASK, Kernel, NoSuchKernel
from gdb_optprobe.isa.base import Flow, OutOfReach
from gdb_optprobe.isa.record import Isa

BITS = 6  # KPROBE_HASH_BITS
GOLDEN = 0x61C8864680B583EB  # GOLDEN_RATIO_64 (include/linux/hash.h)
MOST = 1 << 14
"""A limit (budget.py), of all lists together. Linux's own tests have some hundreds."""
LONGEST_WINDOW = 64
TABLE, REGISTERS = "kprobe_table", "register_kprobe"
"""A kernel without kprobes has no such function."""


@dataclass(frozen=True, slots=True)
class Kprobe:
    """A kprobe of the guest.

    written: the bytes that the guest has written at `address`; empty where it is not armed.
    beneath: the original bytes there, as many.
    size:    how many bytes from `address` the guest may write at any time; whole instructions.
    jumps:   whether a jump to the kprobe's code is there: the bytes after its first are never executed in place.
    """

    address: int
    beneath: bytes
    written: bytes
    size: int
    jumps: bool = False

    @property
    def end(self) -> int:
        return self.address + self.size


def known(kernel: Kernel, isa: Isa) -> list[Kprobe]:
    """Return all kprobes, ascending. Raises OptprobeError where they cannot be read."""
    table = kernel.symbols.address(TABLE)
    if table is None:
        if kernel.symbols.address(REGISTERS) is None:
            return []
        raise NoSuchKernel("the list of the guest's own kprobes has no symbol (kprobe_table)")
    heads = [head for (head,) in iter_unpack("<Q", kernel.memory.read(table, 8 << BITS))]
    if not any(heads):
        return []
    layout = Layout.of(kernel)
    found = []
    budget = Budget(MOST, "the guest's list of its own kprobes", "members")
    for number, head in enumerate(heads):
        for probe in _probes(kernel, head, layout, budget):
            address = kernel.word(probe + layout.address)
            # The list that a kprobe is in is chosen by its address: nothing else reads as one.
            if hashed(address) != number:
                raise NoSuchKernel("the guest's list of its own kprobes does not read as one")
            found.append(_kprobe(kernel, isa, layout, probe, address))
    return sorted(found, key=lambda each: each.address)


def find(kernel: Kernel) -> None:
    """Derive what `known` needs from code, where that is possible. `known` reports why it is not."""
    kernel.symbols.address(TABLE)
    with suppress(OptprobeError):
        Layout.of(kernel)


def original(text: bytes, base: int, probes: Iterable[Kprobe]) -> bytes:
    """Return `text`, read at `base`, as it would be without these kprobes. One that is not armed has changed nothing.
    """
    found = bytearray(text)
    for probe in probes:
        for at, (beneath, written) in enumerate(zip(probe.beneath, probe.written, strict=True), probe.address - base):
            if 0 <= at < len(found) and found[at] == written:
                found[at] = beneath
    return bytes(found)


def hashed(address: int) -> int:
    """Return the number of the list that the kprobe at `address` is in: hash_ptr()."""
    return (address * GOLDEN & MASK) >> 64 - BITS


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets of members. copied, slot, size: of a struct optimized_kprobe; None where kernel or ISA has none."""

    node: int
    address: int
    opcode: int
    pre_handler: int
    copied: int | None = None
    slot: int | None = None
    size: int | None = None

    @classmethod
    def of(cls, kernel: Kernel) -> Layout:
        """Return the layout. Raises OptprobeError."""

        def optimized(member: str) -> int | None:
            try:
                return kernel.offset("optimized_kprobe", f"optinsn.{member}")
            except OptprobeError:
                return None

        node, address, opcode, pre_handler = (
            kernel.offset("kprobe", member) for member in ("hlist", "addr", "opcode", "pre_handler")
        )
        return cls(node, address, opcode, pre_handler, optimized("copied_insn"), optimized("insn"), optimized("size"))


def _probes(kernel: Kernel, head: int, layout: Layout, budget: Budget) -> Iterator[int]:
    """Yield the kprobes in an hlist (include/linux/list.h)."""
    node = head
    seen: set[int] = set()
    while node:
        if node in seen:
            raise NoSuchKernel("the guest's list of its own kprobes has no end")
        seen.add(node)
        budget.spend()
        yield node - layout.node
        node = kernel.word(node)


def _kprobe(kernel: Kernel, isa: Isa, layout: Layout, probe: int, address: int) -> Kprobe:
    """Read an optimized kprobe, as drawn above. Raises OptprobeError where the text has neither form."""
    width = len(isa.breakpoint)
    opcode = kernel.memory.read(probe + layout.opcode, width)
    now = kernel.memory.read(address, isa.branch_size)
    size, jump, whole = _optimized(kernel, isa, layout, probe, address, opcode)
    # While the guest writes or removes its jump, the first byte is a breakpoint.
    written = jump, isa.breakpoint + jump[width:] if len(jump) > width else jump
    if jump and now in written:
        return Kprobe(address, whole, now, size, jumps=True)
    if now[:width] != opcode and _traps(now[:width], isa, address):
        return Kprobe(address, opcode, now[:width], size)
    return Kprobe(address, b"", b"", size)


def _traps(data: bytes, isa: Isa, address: int) -> bool:
    """Return whether `data` is a breakpoint: of kprobes it may be another than GDB's."""
    return [insn.flow for insn in isa.decode(data, address)] == [Flow.TRAP]


def _optimized(
    kernel: Kernel, isa: Isa, layout: Layout, probe: int, address: int, opcode: bytes
) -> tuple[int, bytes, bytes]:
    """Return (bytes that the guest may write, its jump, the code that the jump covers); b"" for a jump that cannot be.
    """
    width = len(isa.breakpoint)
    plain = width, b"", b""
    aggregate = kernel.symbols.address("aggr_pre_handler")
    if layout.slot is None or layout.copied is None:
        return plain
    if aggregate is not None and kernel.word(probe + layout.pre_handler) != aggregate:
        return plain
    if not (slot := kernel.word(probe + layout.slot)):
        return plain
    size = kernel.word(probe + layout.size) if layout.size is not None else isa.branch_size
    try:
        jump = isa.branch(address, slot)
    except OutOfReach:
        jump = b""
    if not isa.branch_size <= size <= LONGEST_WINDOW or not jump:
        if aggregate is None:
            return plain
        raise NoSuchKernel(f"the guest's own kprobe at {address:#x} does not read as one")
    return size, jump, opcode + kernel.memory.read(probe + layout.copied, isa.branch_size - width)
