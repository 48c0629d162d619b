"""Locations that are not found, in a real GDB without symbols: what is said of them."""

from __future__ import annotations

import pytest

from tests.commands.in_gdb import Ended, shared_gdb

NO_CODE = "a macro or a function that is always inlined has no code of its own: probe a caller"
WHOLE = "a glob is of whole names, as *read*; a module's functions are found once it is loaded"
LINES = "a line needs debug information of its file: file VMLINUX (with DWARF), or FUNCTION+OFFSET"
ANSWERS = [
    ("nonsense:vfs_read", "no module called", "vfs_read is a function of the kernel: name it without nonsense:"),
    ("nothing:sync_fs+4", "no module called", "sync_fs is a function of another module: name it without nothing:"),
    ("brd:brd_rw", "no module called brd", "if brd is loaded later: the same with -pending"),
    ("fs/read_write.c:450", "", LINES),
    ("vfs_raed", "", f"did you mean vfs_read? {NO_CODE}"),
    ("fdget", "", NO_CODE),
    ("nosuch_*", "no function matches 'nosuch_*'", WHOLE),
]
SCRIPT = """python
from types import SimpleNamespace
from gdb_optprobe.debugger.locations import Locations
from gdb_optprobe.errors import OptprobeError
names = ("vfs_read", "kfree")
symbols = SimpleNamespace(
    lookup=lambda name: [1] if name in names else [],
    completions=lambda prefix: [name for name in names if name.startswith(prefix)],
    functions_matching=lambda pattern: {8} if pattern in ("vfs_*", "*") else set(),
)
modules = SimpleNamespace(has=lambda name: name == "ext4", names=lambda name="": iter([("sync_fs", 5)]))
try:
    print(Locations(symbols, lambda starts: starts, modules).resolve({location}))
except OptprobeError as error:
    print(error.message, "|", error.hint)
"""


def resolved(arguments: str) -> Ended:
    script = SCRIPT.removeprefix("python\n").replace("{location}", arguments)
    return shared_gdb(f"python exec({script!r})")


@pytest.mark.parametrize(("location", "message", "hint"), ANSWERS)
def test_a_hint_leads_somewhere(location: str, message: str, hint: str) -> None:
    ended = resolved(repr(location))
    said, _, hinted = ended.out.strip().partition(" | ")
    assert message in said and hinted == hint, ended.err


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("ext4:sync_fs", ""),
        ("ext4:sync_fs+4", ""),
        ("ext4:nothing", "the module ext4 is loaded and has no such function"),
        ("ext4:nothing+0x4", "the module ext4 is loaded and has no such function"),
        ("brd:nothing", ""),
        ("nothing", ""),
    ],
)
def test_what_a_loaded_module_lacks_is_told_of_a_probe_that_waits(location: str, said: str) -> None:
    script = SCRIPT.replace(".resolve({location})", f".lacking({location!r})").removeprefix("python\n")
    assert shared_gdb(f"python exec({script!r})").out.strip() == said


@pytest.mark.parametrize(
    ("glob", "addresses"),
    [("vfs_*", "(8,)"), ("'vfs_*'", "(8,)"), ('"vfs_*"', "(8,)"), ("*", "(5, 8)"), ("'*'", "(5, 8)")],
)
def test_a_glob_may_be_quoted_and_may_begin_with_a_star(glob: str, addresses: str) -> None:
    assert resolved(f"{glob!r}, True").out.strip() == addresses
