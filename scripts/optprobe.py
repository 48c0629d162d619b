"""The file to `source` in GDB 13 or later: it makes the command `optprobe` known."""

import sys
from pathlib import Path

import gdb

ROOT = Path(__file__).resolve().parent.parent


def load() -> None:
    check_versions()
    # What scripts/setup chose goes before what GDB's Python may have of another version.
    for folder in (str(ROOT / ".packages"), str(ROOT)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    check_packages()
    from gdb_optprobe.commands import register

    register()


def check_versions() -> None:
    version = gdb.VERSION.split(".")[0]
    if version.isdecimal() and int(version) < 13:
        raise gdb.GdbError(f"optprobe: GDB 13 or later is needed; this is {gdb.VERSION}")
    # Linters know only the Pythons we run on; GDB's may be another.
    if sys.version_info < (3, 11):  # noqa: UP036
        found = sys.version.split()[0]
        raise gdb.GdbError(f"optprobe: a GDB with Python 3.11 or later is needed; this one has {found}")


def check_packages() -> None:
    try:
        import capstone  # noqa: F401
    except Exception as error:
        raise gdb.GdbError(f"optprobe: capstone cannot be imported ({error}); run {ROOT}/scripts/setup") from None


def source() -> None:
    try:
        load()
    except gdb.GdbError as error:
        # In batch mode GDB forgets every failure but the last command's, so this one ends it, as all our failures do.
        if not batch_mode():
            raise
        gdb.write(f"{error}\n", gdb.STDERR)
        gdb.execute("quit 1")


def batch_mode() -> bool:
    """As gdb_optprobe.debugger.parameters has it, which may be what cannot be imported."""
    try:
        words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"-batch" in words or b"--batch" in words


source()
