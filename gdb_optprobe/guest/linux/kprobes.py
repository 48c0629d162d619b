"""The guest's own kprobes: the bytes beneath their breakpoints and jumps.

    kprobe_table ─► 64 lists of struct kprobe (kernel/kprobes.c)
                    │ addr   ─► text: CC …      the byte beneath is `opcode`
                    │ opcode               or   E9 rel32 of an optimized_kprobe, around this kprobe: beneath are
                    └ flags                     `opcode` and the four bytes of optinsn.copied_insn

As recover_probed_instruction() (arch/x86/kernel/kprobes/core.c) has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import iter_unpack

from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel

LISTS = 64  # 1 << KPROBE_HASH_BITS
MOST = 1 << 16
OPTIMIZED = 1 << 2  # KPROBE_FLAG_OPTIMIZED (include/linux/kprobes.h)
BREAKPOINT, JUMP = 0xCC, 0xE9
COPIED = 4  # DISP32_SIZE


@dataclass(frozen=True, slots=True)
class Kprobe:
    """One probe. beneath: its first original byte; the first five where it may be optimized."""

    address: int
    beneath: bytes


def known(kernel: Kernel) -> list[Kprobe]:
    """Every kprobe there is now. Raises OptprobeError where they cannot be told."""
    table = kernel.symbols.address("kprobe_table")
    if table is None:
        return []
    heads = [head for (head,) in iter_unpack("<Q", kernel.memory.read(table, 8 * LISTS)) if head]
    return [_kprobe(kernel, node) for head in heads for node in _nodes(kernel, head)]


def original(text: bytes, base: int, probes: Iterable[Kprobe]) -> bytes:
    """`text`, read at `base`, as it would be without these kprobes. One that is not armed has changed nothing."""
    found = bytearray(text)
    for probe in probes:
        at, size = probe.address - base, len(probe.beneath)
        if 0 <= at <= len(found) - size:
            if found[at] == BREAKPOINT:
                found[at] = probe.beneath[0]
            elif found[at] == JUMP and size > 1:
                found[at : at + size] = probe.beneath
    return bytes(found)


def _nodes(kernel: Kernel, head: int) -> Iterator[int]:
    """The kprobes in an hlist (include/linux/list.h)."""
    offset = kernel.offset("kprobe", "hlist")
    node = head
    for _ in range(MOST):
        if not node:
            return
        yield node - offset
        node = kernel.word(node)
    raise NoSuchKernel("the guest's list of kprobes has no end")


def _kprobe(kernel: Kernel, at: int) -> Kprobe:
    def read(struct: str, member: str, size: int) -> bytes:
        return kernel.memory.read(at + kernel.offset(struct, member), size)

    beneath = read("kprobe", "opcode", 1)
    if int.from_bytes(read("kprobe", "flags", 4), "little") & OPTIMIZED:
        beneath += read("optimized_kprobe", "optinsn.copied_insn", COPIED)
    return Kprobe(kernel.word(at + kernel.offset("kprobe", "addr")), beneath)
