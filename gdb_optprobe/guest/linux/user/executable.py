"""The file that a process ran at a hit, even if it has ended since: five words that a hit reads, and their lookup.

    mm->exe_file ─► its dentry, its inode, that one's number, when it was written to last
    mm->start_code: where the program is loaded

A file that has gone since from the guest's memory, or has been written to, is not known any more: then another may have
its places there, or its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.user import files
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ir import Choose, Expr, Load, Op
from gdb_optprobe.handlers.scope import Missing

DENTRY, INODE, NUMBER, WRITTEN, START = "dentry", "inode", "number", "written", "start"
NAMES = (DENTRY, INODE, NUMBER, WRITTEN)
"""Of those that say which file it was."""


class Offset(Protocol):
    """Return the offset of a structure's member; of several names the first that exists. Raises OptprobeError."""

    def __call__(self, struct: str, *members: str) -> int: ...


def words(task: Expr | Missing, offset: Offset) -> tuple[tuple[str, Expr], ...]:
    """Return expressions that identify the running thread's file, by name; none where this kernel does not have them.
    """
    if isinstance(task, Missing):
        return ()
    try:
        mm = _word(task, offset("task_struct", "mm"))
        file = _word(mm, offset("mm_struct", "exe_file"))
        inode = _word(file, offset("file", "f_inode"))
        found = {
            DENTRY: _word(file, offset("file", "f_path.dentry")),
            INODE: inode,
            NUMBER: replace(_word(inode, offset("inode", "i_ino")), mapped=False),  # a file may go meanwhile
            WRITTEN: _written(inode, offset),
        }
        start = _word(mm, offset("mm_struct", "start_code"))
    except OptprobeError:
        return ()
    # A process can have lost its program's file (kernel/fork.c, set_mm_exe_file).
    safe = {name: Choose(file, word, fold.constant(0)) for name, word in found.items()}
    return (*safe.items(), (START, start))


def executable(programs: Programs, taken: Mapping[str, int]) -> Program | None:
    """Return the program that these words identify; None where its file has changed, or cannot be read."""
    kernel = programs.kernel
    try:
        if not taken.get(INODE) or kernel.word(taken[DENTRY] + kernel.offset("dentry", "d_inode")) != taken[INODE]:
            return None
        file = files.named(kernel, taken[DENTRY])
        if (file.number, files.written(kernel, file.inode)) != (taken[NUMBER], taken[WRITTEN]):
            return None
        return programs.known(file)
    except OptprobeError:
        return None


def is_as_it_was(programs: Programs, program: Program) -> bool:
    """Return whether the file's content is the same as when the program was found."""
    kernel, file = programs.kernel, program.file
    try:
        size = kernel.word(file.inode + kernel.offset("inode", "i_size"))
        return (size, files.written(kernel, file.inode)) == (file.size, program.written)
    except OptprobeError:
        return False


def _written(inode: Expr, offset: Offset) -> Expr:
    """See files.written."""
    seconds, nanoseconds = (
        replace(_word(inode, offset("inode", *names)), size=size, mapped=False)
        for names, size in zip(files.WRITTEN, (8, 4), strict=True)
    )
    seconds_up = fold.binary(Op.SHL, seconds, fold.constant(files.SECONDS_SHIFT), 64, False)
    return fold.binary(Op.ADD, seconds_up, nanoseconds, 64, False)


def _word(address: Expr, offset: int) -> Load:
    return Load(fold.binary(Op.ADD, address, fold.constant(offset), 64, False), 8, signed=False, mapped=True)
