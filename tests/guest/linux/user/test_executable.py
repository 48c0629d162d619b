"""Whose program a process ran, and whether a file has in it what it had: by when it was written to."""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from typing import cast

import pytest

from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.user import executable, files
from gdb_optprobe.guest.linux.user.elf import Elf, Segment
from gdb_optprobe.guest.linux.user.files import File
from gdb_optprobe.guest.linux.user.program import Program
from gdb_optprobe.guest.linux.user.programs import Programs
from tests.guest.linux import fake_kernel
from tests.guest.linux.user import test_files

SECONDS, NANOSECONDS = 1_700_000_000, 123_456_789
CODE = Segment(0x1000, 0x1000, 0x100, 0x100, code=True)
LAYOUTS = {
    "6.1": {"inode.i_mtime.tv_sec": 0x40, "inode.i_mtime.tv_nsec": 0x48},
    "6.7": {"inode.__i_mtime.tv_sec": 0x40, "inode.__i_mtime.tv_nsec": 0x48},
    "6.11": {"inode.i_mtime_sec": 0x40, "inode.i_mtime_nsec": 0x48},
}


def _zeros(_: int, size: int) -> bytes:
    return bytes(size)


@dataclass
class _Known:
    """Has one program in every file."""

    kernel: Kernel

    def known(self, file: File) -> Program:
        elf = Elf("", _zeros, 64, True, 0, (CODE,), b"", (0, 0, 0), 62, 4096)
        return Program(file, elf, files.written(self.kernel, file.inode))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=[*LAYOUTS])
def test_a_file_that_is_written_to_is_another(layout: dict[str, int]) -> None:
    guest = test_files.Kernel()
    kernel = replace(guest.known, structures=fake_kernel.Structures(test_files.OFFSETS | layout))
    inode = guest.inode(stat.S_IFREG, 5000)
    dentry = guest.within(guest.root, program=inode)["program"]
    guest.put_words(inode + 0x40, SECONDS, NANOSECONDS)
    programs = cast(Programs, _Known(kernel))
    program = programs.known(files.find(kernel, "/program"))
    assert program.written == SECONDS << 30 | NANOSECONDS
    taken = {"dentry": dentry, "inode": inode, "number": 77, "written": program.written}
    found = executable.executable(programs, taken)
    assert found is not None and found.written == program.written and executable.is_as_it_was(programs, program)
    for changed in ((SECONDS + 1, NANOSECONDS), (SECONDS, NANOSECONDS + 1)):
        guest.put_words(inode + 0x40, *changed)
        assert executable.executable(programs, taken) is None and not executable.is_as_it_was(programs, program)
    guest.put_words(inode + 0x40, SECONDS, NANOSECONDS)
    assert executable.executable(programs, taken) is not None and executable.is_as_it_was(programs, program)
    guest.put_words(inode + 0x20, 5001)
    assert not executable.is_as_it_was(programs, program)
    assert not executable.is_as_it_was(programs, replace(program, file=replace(program.file, inode=0x1000)))
