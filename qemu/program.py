"""The program `optprobe` of an installed package.

    optprobe gdb [ARG…]      GDB with the command `optprobe`; arguments go to GDB
    optprobe guest …         boot a guest to probe, run commands in it, stop it: optprobe guest --help
    optprobe demo [OPTION…]  boot a stock guest, probe it, show what a hit costs
    optprobe gdbinit         print the line for your .gdbinit, for the command `optprobe` in every GDB
    optprobe --version
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from gdb_optprobe import __version__

from . import demo, guest_program
from .cache import say
from .checkout import PLUGIN
from .debugger import DebuggerError

OLDEST_GDB, OLDEST_PYTHON = 13, (3, 11)
ASK = "python import sys; print('@', *sys.version_info[:2], gdb.VERSION)"
ANSWER = re.compile(r"^@ (\d+) (\d+) (.*)", re.MULTILINE)


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
    except DebuggerError as error:
        say(str(error))
        return 1


def usage() -> str:
    """Return the list of commands."""
    return (__doc__ or "").partition("\n\n")[2].rstrip()


def version(_: Sequence[str]) -> int:
    print(f"optprobe {__version__}")
    return 0


def gdbinit(_: Sequence[str]) -> int:
    print(loading())
    return 0


def gdb(words: Sequence[str]) -> int:
    """Become GDB. Its own commands run after ours, so that they may use `optprobe`."""
    program = fitting_gdb()
    sys.stdout.flush()
    os.execv(program, [program, "-ex", loading(), *words])


def loading() -> str:
    """Return GDB's command that loads the plugin."""
    return f"source {PLUGIN}"


def fitting_gdb() -> str:
    """Return the first GDB that can load the plugin. Raises DebuggerError, with what each one lacks."""
    wanted = os.environ.get("OPTPROBE_GDB")
    lacks = []
    for name in (wanted,) if wanted else ("gdb-multiarch", "gdb"):
        path = shutil.which(name)
        if path is None:
            lacks.append(f"{name} is not installed")
        elif why := unfit(path):
            lacks.append(f"{path} {why}")
        else:
            return path
    raise DebuggerError(
        f"no GDB fits: {', '.join(lacks)}; install GDB {OLDEST_GDB} or later with Python 3.11 or later,"
        " or name one in $OPTPROBE_GDB"
    )


def unfit(path: str) -> str:
    """Return what a GDB lacks; "" where it fits."""
    try:
        done = subprocess.run(
            [path, "-nx", "-batch", "-ex", ASK], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run ({error})"
    found = ANSWER.search(done.stdout)
    if found is None:
        return "has no Python"
    if (number := re.search(r"\d+", found[3])) and int(number[0]) < OLDEST_GDB:
        return f"is of version {found[3]}"
    if (int(found[1]), int(found[2])) < OLDEST_PYTHON:
        return f"has Python {found[1]}.{found[2]}"
    return ""


WORDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "gdb": gdb,
    "guest": guest_program.main,
    "demo": demo.main,
    "gdbinit": gdbinit,
    "--version": version,
}

if __name__ == "__main__":
    sys.exit(main())
