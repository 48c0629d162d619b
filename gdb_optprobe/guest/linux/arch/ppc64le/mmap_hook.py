"""The code of the mmap hook (guest/linux/user/mmap_hook.py).

r2 is the kernel's TOC; functions called at their local entries need it and keep it (ELFv2 ABI, 2.3.2.1).
(mm/util.c, vm_mmap_pgoff(file, addr, len, prot, flag, pgoff))
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.guest.linux.user.mmap_hook import (
    EXECUTABLE,
    MOST_ERRORS,
    PATIENCE,
    SHARED,
    WRITABLE,
    WRITE,
    MmapKernel,
)
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import Comparison, Label
from gdb_optprobe.isa.ppc64le import encodings
from gdb_optprobe.isa.ppc64le.abi import HEADER, LR_SAVE
from gdb_optprobe.isa.ppc64le.encodings import FarBranch, Item, LabelBranch, compare, logical, number, plain, rotate
from gdb_optprobe.isa.ppc64le.templates import load
from gdb_optprobe.isa.ppc64le.value_codegen import branch_if
from gdb_optprobe.maps.mmap_patches import DATA, FAILED, INODE, INSIDE, LENGTH, OFFSET, OLD, ROWS, SIZE

_SP, _AT, _ROW, _RESULT, _FIRST, _SIZE, _INODE, _TABLE = "r1", "r25", "r26", "r27", "r28", "r29", "r30", "r31"
_SAVED = (_AT, _ROW, _RESULT, _FIRST, _SIZE, _INODE, _TABLE)
_FRAME = HEADER + 80
_HELD = HEADER
"""Where in the frame what the file has is read to."""


def lower_mmap_hook(kernel: MmapKernel, table: int, force: int) -> Code:
    """Return the code. Raises OptprobeError where keystone cannot be loaded or assembles wrongly.

    table: address of the rows. force: flag that makes `writes` write into private copies.
    """
    items = [*_parts(kernel, table, force)]
    return lambda at: encodings.encode_items(items, at)


def _parts(kernel: MmapKernel, table: int, force: int) -> Iterator[Item]:
    maps, row, following, done, failed, other = (Label() for _ in range(6))
    yield from (compare("cmpldi", 0, "r3", 0), branch_if(Comparison.EQ, maps))
    yield from (logical("andi.", "r12", "r6", EXECUTABLE), branch_if(Comparison.EQ, maps))
    yield from (logical("andi.", "r12", "r6", WRITABLE), branch_if(Comparison.NE, maps))
    yield from (logical("andi.", "r12", "r7", SHARED), branch_if(Comparison.NE, maps))
    yield from (plain("mflr", "r0"), number("std", "r0", _SP, LR_SAVE))
    yield from (number("std", name, _SP, -8 * (32 - int(name[1:]))) for name in _SAVED)
    yield number("stdu", _SP, _SP, -_FRAME)
    yield from (*load(31, table), number("ld", _INODE, "r3", kernel.inode))
    yield from (*load(12, (1 << kernel.bits) - 1), plain("add", _SIZE, "r5", "r12"))
    yield rotate("rldicr", _SIZE, _SIZE, 0, 63 - kernel.bits)
    yield rotate("rldicr", _FIRST, "r8", kernel.bits, 63 - kernel.bits)
    yield from _counted(INSIDE, 1)
    yield from (FarBranch(kernel.maps, link=True), logical("or", _RESULT, "r3", "r3"))
    yield from (number("addi", "r12", "r0", -MOST_ERRORS), compare("cmpld", 0, _RESULT, "r12"))
    yield from (branch_if(Comparison.GT, done), number("addi", _ROW, _TABLE, ROWS))
    yield from (row, number("ld", "r12", _ROW, INODE), compare("cmpldi", 0, "r12", 0))
    yield branch_if(Comparison.EQ, done)
    yield from (compare("cmpld", 0, "r12", _INODE), branch_if(Comparison.NE, following))
    yield from (number("ld", "r4", _ROW, OFFSET), compare("cmpld", 0, "r4", _FIRST))
    yield branch_if(Comparison.LT, following)
    yield from (plain("subf", "r4", _FIRST, "r4"), compare("cmpld", 0, "r4", _SIZE))
    yield branch_if(Comparison.GE, following)
    yield from (plain("add", _AT, "r4", _RESULT), number("addi", "r12", "r0", 0))
    yield from (number("std", "r12", _SP, at) for at in (_HELD, _HELD + 8))
    yield number("addi", "r5", _SP, _HELD)
    yield from (*_accesses(kernel, force & ~WRITE), branch_if(Comparison.NE, failed))
    for at in (0, 8):
        yield from (number("ld", "r11", _SP, _HELD + at), number("ld", "r12", _ROW, OLD + at))
        yield from (compare("cmpld", 0, "r11", "r12"), branch_if(Comparison.NE, other))
    yield number("addi", "r5", _ROW, DATA)
    yield from (*_accesses(kernel, force), branch_if(Comparison.EQ, following))
    yield from (failed, number("addi", "r3", "r0", PATIENCE), FarBranch(kernel.waits, link=True))
    yield from (compare("cmpdi", 0, "r3", 0), branch_if(Comparison.GT, done))
    yield other
    yield from (*_counted(FAILED, 1), LabelBranch(done))
    yield from (following, number("addi", _ROW, _ROW, SIZE), LabelBranch(row))
    yield from (done, plain("lwsync"), *_counted(INSIDE, -1), logical("or", "r3", _RESULT, _RESULT))
    # Clear LR that callees saved there: a scan of the stack would take it for a thread inside this code.
    yield from (number("addi", "r12", "r0", 0), number("std", "r12", _SP, LR_SAVE))
    yield number("addi", _SP, _SP, _FRAME)
    yield from (number("ld", name, _SP, -8 * (32 - int(name[1:]))) for name in _SAVED)
    yield from (number("ld", "r0", _SP, LR_SAVE), plain("mtlr", "r0"), plain("blr"))
    yield from (maps, FarBranch(kernel.maps))


def _accesses(kernel: MmapKernel, flags: int) -> Iterator[Item]:
    """Yield a call that reads or writes the row's bytes, to or from where r5 leads; cr0: whether all were."""
    yield from (number("ld", "r3", "r13", kernel.current), number("ld", "r3", "r3", kernel.mm))
    yield from (logical("or", "r4", _AT, _AT), number("lwz", "r6", _ROW, LENGTH))
    yield from (number("addi", "r7", "r0", flags), FarBranch(kernel.writes, link=True))
    yield from (number("lwz", "r12", _ROW, LENGTH), compare("cmpld", 0, "r3", "r12"))


def _counted(offset: int, by: int) -> Iterator[Item]:
    """Yield an atomic addition to a word of the table."""
    again = Label()
    yield from (number("addi", "r12", _TABLE, offset), again, plain("ldarx", "r11", "r0", "r12"))
    yield from (number("addi", "r11", "r11", by), plain("stdcx.", "r11", "r0", "r12"), branch_if(Comparison.NE, again))
