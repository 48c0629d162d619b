"""Trace one `Session.add` with a condition and a histogram on the fake guest: scripts/trace-add

What is counted, of the package's own code: functions that run, the files they are in, calls from one file into
another, and how often a site is planned and a program lowered. The session is new: what is made at first use counts.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import gdb_optprobe
from gdb_optprobe.detours.planner import plan
from gdb_optprobe.handlers.lower_program import lower
from gdb_optprobe.probes.spec import Spec
from tests.fake_guest import PLAIN, program

PACKAGE = str(Path(gdb_optprobe.__file__).parent) + "/"
INNER = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>")
"""Code objects that are a part of the function around them."""


@dataclass
class Trace:
    """What ran of the package. calls: by code object. moves: calls into another file, by the two files."""

    calls: Counter[CodeType] = field(default_factory=Counter)
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)

    def run(self, action: Callable[[], object]) -> None:
        """Call `action`, and count all that it calls."""
        sys.setprofile(self._profile)
        try:
            action()
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name not in INNER:
            self.calls[code] += 1
        caller = frame.f_back.f_code.co_filename if frame.f_back is not None else ""
        if caller.startswith(PACKAGE) and caller != code.co_filename:
            self.moves[(caller, code.co_filename)] += 1

    @property
    def files(self) -> set[str]:
        return {code.co_filename.removeprefix(PACKAGE) for code in self.calls}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/trace-add", description="Trace one add on the fake guest.")
    parser.add_argument("-v", "--verbose", action="store_true", help="list the files and their functions")
    verbose = parser.parse_args().verbose
    guest = program()
    session, trace = guest.session(), Trace()
    spec = Spec(f"*{PLAIN:#x}", condition="$rax > 3", actions=("hist($rcx)",))
    trace.run(lambda: session.add(spec))
    (view,) = session.views()
    print(f"add *{PLAIN:#x} if {spec.condition} do {spec.actions[0]}: {view.tier}")
    print(f"{len(trace.calls):6,} functions, {trace.calls.total():,} calls")
    print(f"{len(trace.files):6,} files")
    print(f"{trace.moves.total():6,} calls from one file into another")
    for name, function in (("planned", plan), ("lowered", lower)):
        print(f"{trace.calls[function.__code__]:6,} times {name}")
    if verbose:
        for file in sorted(trace.files):
            names = [code.co_qualname for code in trace.calls if code.co_filename == PACKAGE + file]
            print(f"{file}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
