"""The code of the mmap hook (guest/linux/user/mmap_hook.py).

Callees store their return address in frames below the stack pointer: that is zeroed at the end, as program_writer.py
does it. (mm/util.c, vm_mmap_pgoff(file, addr, len, prot, flag, pgoff))
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.guest.linux.arch.aarch64.program_writer import call, wipe
from gdb_optprobe.guest.linux.user.mmap_hook import (
    EXECUTABLE,
    MOST_ERRORS,
    PATIENCE,
    SHARED,
    WRITABLE,
    WRITE,
    MmapKernel,
)
from gdb_optprobe.isa.aarch64.abi import LR, SP
from gdb_optprobe.isa.aarch64.encodings import (
    FarBranch,
    Item,
    bits,
    branch_if,
    branch_on_bit,
    branch_on_zero,
    constant,
    encode_items,
    jump,
    masked,
    number,
    plain,
    scaled,
)
from gdb_optprobe.isa.aarch64.fields import MASK
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.codegen import Comparison, Label
from gdb_optprobe.maps.mmap_patches import DATA, FAILED, INODE, INSIDE, LENGTH, OFFSET, OLD, ROWS, SIZE

_AT, _ROW, _RESULT, _FIRST, _SIZE, _INODE, _TABLE = (f"x{number}" for number in range(19, 26))
_SLOTS = {name: 8 * place for place, name in enumerate((LR, _AT, _ROW, _RESULT, _FIRST, _SIZE, _INODE, _TABLE))}
_HELD = 8 * len(_SLOTS)
"""Where in the frame what the file has is read to."""
_FRAME = _HELD + 16
_WORK, _OTHER = "x16", "x17"


def lower_mmap_hook(kernel: MmapKernel, table: int, force: int) -> Code:
    """Return the code. Raises OptprobeError where keystone cannot be loaded or assembles wrongly.

    table: address of the rows. force: flag that makes `writes` write into private copies.
    """
    items = [*_parts(kernel, table, force)]
    return lambda at: encode_items(items, at)


def _parts(kernel: MmapKernel, table: int, force: int) -> Iterator[Item]:
    maps, row, following, done, failed, other = (Label() for _ in range(6))
    yield from (branch_on_zero("cbz", "x0", maps), branch_on_bit("tbz", "x3", _bit(EXECUTABLE), maps))
    yield from (branch_on_bit("tbnz", "x3", _bit(WRITABLE), maps), branch_on_bit("tbnz", "x4", _bit(SHARED), maps))
    yield number("subi", SP, SP, _FRAME)
    yield from (scaled("str", name, SP, at, 8) for name, at in _SLOTS.items())
    yield from (*constant(_TABLE, table), scaled("ldr", _INODE, "x0", kernel.inode, 8))
    yield from (*constant(_WORK, (1 << kernel.bits) - 1), plain("add", _SIZE, "x2", _WORK))
    yield _rounded(_SIZE, kernel.bits)
    yield bits("ubfm", _FIRST, "x5", 64 - kernel.bits, 63 - kernel.bits)
    yield from _counted(INSIDE, 1)
    yield from call(kernel.maps)
    yield from (_copy(_RESULT, "x0"), *constant(_WORK, -MOST_ERRORS), plain("subs", "xzr", _RESULT, _WORK))
    yield from (branch_if(Comparison.GT, done), number("addi", _ROW, _TABLE, ROWS), row)
    yield from (scaled("ldr", _WORK, _ROW, INODE, 8), branch_on_zero("cbz", _WORK, done))
    yield from (plain("subs", "xzr", _WORK, _INODE), branch_if(Comparison.NE, following))
    yield from (scaled("ldr", _WORK, _ROW, OFFSET, 8), plain("subs", _WORK, _WORK, _FIRST))
    yield from (branch_if(Comparison.LT, following), plain("subs", "xzr", _WORK, _SIZE))
    yield from (branch_if(Comparison.GE, following), plain("add", _AT, _WORK, _RESULT))
    yield from (scaled("str", "xzr", SP, _HELD + at, 8) for at in (0, 8))
    yield number("addi", "x2", SP, _HELD)
    yield from _accesses(kernel, force & ~WRITE)
    yield branch_if(Comparison.NE, failed)
    for at in (0, 8):
        yield from (scaled("ldr", _OTHER, SP, _HELD + at, 8), scaled("ldr", _WORK, _ROW, OLD + at, 8))
        yield from (plain("subs", "xzr", _OTHER, _WORK), branch_if(Comparison.NE, other))
    yield number("addi", "x2", _ROW, DATA)
    yield from _accesses(kernel, force)
    yield from (branch_if(Comparison.EQ, following), failed)
    yield from (*constant("x0", PATIENCE), *call(kernel.waits))
    yield from (number("subsi", "xzr", "x0", 0), branch_if(Comparison.GT, done, signed=True), other)
    yield from _counted(FAILED, 1)
    yield from (jump(done), following, number("addi", _ROW, _ROW, SIZE), jump(row), done)
    yield from _counted(INSIDE, -1)
    yield from wipe()
    yield _copy("x0", _RESULT)
    yield from (scaled("ldr", name, SP, at, 8) for name, at in _SLOTS.items())
    yield from (number("addi", SP, SP, _FRAME), plain("ret", n=LR))
    yield from (maps, FarBranch(kernel.maps))


def _accesses(kernel: MmapKernel, flags: int) -> Iterator[Item]:
    """Yield a call that reads or writes the row's bytes, to or from where x2 leads; the flags: whether all were."""
    yield from (*constant("x0", kernel.current), plain("get_tpidr_el1", _WORK), plain("add", "x0", "x0", _WORK))
    yield from (scaled("ldr", "x0", "x0", 0, 8), scaled("ldr", "x0", "x0", kernel.mm, 8))
    yield from (_copy("x1", _AT), scaled("ldrw", "x3", _ROW, LENGTH, 4), *constant("x4", flags))
    yield from call(kernel.writes)
    yield from (scaled("ldrw", _WORK, _ROW, LENGTH, 4), bits("ubfm", "x0", "x0", 0, 31))
    yield plain("subs", "xzr", "x0", _WORK)


def _counted(offset: int, by: int) -> Iterator[Item]:
    """Yield an atomic addition to a word of the table, behind all that was done before. It loses x6 and x7, too."""
    again, place, failed = Label(), "x6", "x7"
    yield from (number("addi", place, _TABLE, offset), again, plain("ldxr", _WORK, place))
    yield from (number("addi" if by > 0 else "subi", _WORK, _WORK, abs(by)), plain("stlxr", _WORK, place, failed))
    yield branch_on_zero("cbnzw", failed, again)


def _copy(to: str, source: str) -> int:
    return plain("orr", to, "xzr", source)


def _rounded(register: str, low: int) -> int:
    word = masked("andi", register, register, MASK << low & MASK)
    assert word is not None, "a run of ones"
    return word


def _bit(flag: int) -> int:
    return flag.bit_length() - 1
