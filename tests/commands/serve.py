"""Sourced in GDB: carry out lists of commands that come as lines of JSON, each list with a new session and defaults."""

import json
import sys

import gdb

from gdb_optprobe.debugger.parameters import NAMES
from tests.commands.fake_attach import session

END = "--- carried out ---"


def carry_out(command: str) -> bool:
    """Return whether it succeeded; an error is printed as GDB prints it."""
    try:
        gdb.execute(command)
    except gdb.error as error:
        gdb.write(f"{error}\n", gdb.STDERR)
        return False
    return True


defaults = {name: gdb.parameter(f"optprobe {name}") for name in NAMES}
spelled = {True: "on", False: "off"}
for line in sys.stdin:
    session.__post_init__()
    gdb.set_convenience_variable("optprobe", None)
    for name, value in defaults.items():
        if gdb.parameter(f"optprobe {name}") != value:
            gdb.execute(f"set optprobe {name} {spelled.get(value, value) if isinstance(value, bool) else value}")
    done = [carry_out(command) for command in json.loads(line)]
    gdb.flush(gdb.STDERR)
    gdb.write(f"{END} {int(not done[-1])}\n")
    gdb.flush()
