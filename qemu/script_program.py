"""Run a script in bpftrace's language in a guest, as bpftrace does: GDB is not seen.

    optprobe script [--name NAME | --target SOCKET] [OPTION…] FILE [ARG…]
    optprobe script [--name NAME | --target SOCKET] [OPTION…] -e 'PROGRAM' [ARG…]
    optprobe script [--name NAME | --target SOCKET] -l 'PROBE'

The guest is one of `optprobe guest`, or what GDB's `target remote` takes; $OPTPROBE_TARGET names one for scripts that
begin with `#!/usr/bin/env -S optprobe script`. The options are those of the command `optprobe script` in GDB, where
`help optprobe script` lists them. The exit status is what the script gives to exit(), or 1 where it is refused.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from .cache import guests_directory
from .fitting_gdb import LOADING, become_gdb
from .guest import Guest

OF_GUEST = ("--name", "--target")
# What GDB says of the connection is not the script's. Its messages go to descriptors of its own.
CONNECT = """
import gdb, os
kept = [os.dup(number) for number in (1, 2)]
nowhere = os.open(os.devnull, os.O_WRONLY)
try:
    for number in (1, 2):
        os.dup2(nowhere, number)
    try:
        gdb.execute("target remote " + socket)
        failure = ""
    except gdb.error as error:
        failure = str(error)
    gdb.flush(gdb.STDOUT)
    gdb.flush(gdb.STDERR)
finally:
    for number, each in zip((1, 2), kept):
        os.dup2(each, number)
if failure:
    gdb.write(f"optprobe: {failure}\\n", gdb.STDERR)
    gdb.execute("quit 1")
"""


def main(words: Sequence[str]) -> int:
    """Become a GDB that runs a script. Return a status where there is none to run."""
    if not words or words[0] in ("-h", "--help"):
        print((__doc__ or "").strip(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    lines = gdb_lines(words)
    return become_gdb("-nx", "-q", "-batch", *(word for line in lines for word in ("-ex", line)))


def gdb_lines(words: Sequence[str]) -> list[str]:
    """Return the commands for GDB. words: of the command line. Raises GuestError, ValueError."""
    socket, rest = _guest(words)
    if "-keep" in rest:
        raise ValueError("-keep is for a GDB that stays: optprobe gdb")
    return [
        "set pagination off",
        "set width 0",
        "set confirm off",
        "set remotetimeout 30",
        "set print inferior-events off",
        LOADING,
        "set optprobe load-symbols off",
        f"python exec({CONNECT!r}, {{'socket': {socket!r}}})",
        f"optprobe script {shlex.join(rest)}",
    ]


def _guest(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return what `target remote` takes, and the words behind those that say it."""
    if words[0] not in OF_GUEST:
        return os.environ.get("OPTPROBE_TARGET") or _socket_of("default"), words
    if len(words) < 2:
        raise ValueError(f"{words[0]} takes a value")
    return words[1] if words[0] == "--target" else _socket_of(words[1]), words[2:]


def _socket_of(name: str) -> str:
    if "/" in name or name.startswith("."):
        raise ValueError(f"not a name for a guest: {name}")
    return str(Guest.find(guests_directory() / name).gdb_socket)
