"""The program `optprobe` of an installed package.

    optprobe gdb [ARG…]      GDB with the command `optprobe`; arguments go to GDB
    optprobe guest …         boot a guest to probe, run commands in it, stop it: optprobe guest --help
    optprobe script …        run a script in bpftrace's language in a guest: optprobe script --help
    optprobe demo [OPTION…]  boot a stock guest, probe it, show what a hit costs
    optprobe gdbinit         print the line for your .gdbinit, for the command `optprobe` in every GDB
    optprobe --version
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from gdb_optprobe import __version__

from . import demo, guest_program, script_program
from .cache import say
from .debugger import DebuggerError
from .fitting_gdb import LOADING, become_gdb
from .guest import GuestError


def main() -> int:
    """Run the program and return its exit status."""
    word, *rest = sys.argv[1:] or [""]
    if word in ("-h", "--help", "help"):
        print(usage())
        return 0
    if word not in WORDS:
        print(usage(), file=sys.stderr)
        return 2
    try:
        return WORDS[word](rest)
    except (DebuggerError, GuestError, ValueError) as error:
        say(str(error))
        return 1


def usage() -> str:
    """Return the list of commands."""
    return (__doc__ or "").partition("\n\n")[2].rstrip()


def version(_: Sequence[str]) -> int:
    print(f"optprobe {__version__}")
    return 0


def gdbinit(_: Sequence[str]) -> int:
    print(LOADING)
    return 0


def gdb(words: Sequence[str]) -> int:
    """Become GDB. Its own commands run after ours, so that they may use `optprobe`."""
    return become_gdb("-ex", LOADING, *words)


WORDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "gdb": gdb,
    "guest": guest_program.main,
    "script": script_program.main,
    "demo": demo.main,
    "gdbinit": gdbinit,
    "--version": version,
}

if __name__ == "__main__":
    sys.exit(main())
