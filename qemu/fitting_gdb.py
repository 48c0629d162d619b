"""The GDB that the installed program starts: the first that can load the plugin."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import NoReturn

from .checkout import PLUGIN
from .debugger import DebuggerError

OLDEST_GDB, OLDEST_PYTHON = 13, (3, 11)
ASK = "python import sys; print('@', *sys.version_info[:2], gdb.VERSION)"
ANSWER = re.compile(r"^@ (\d+) (\d+) (.*)", re.MULTILINE)
LOADING = f"source {PLUGIN}"
"""GDB's command that loads the plugin."""


def become_gdb(*words: str) -> NoReturn:
    """Replace this process by a GDB that fits. Raises DebuggerError where there is none."""
    program = fitting_gdb()
    sys.stdout.flush()
    os.execv(program, [program, *words])


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
