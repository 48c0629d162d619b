"""Run the cases that are like bpftrace's in a guest, by the command: scripts/compat.

    cases ── one GDB: optprobe script [OPTION…] -e PROGRAM [ARG…], one after the other ──► what each prints
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from qemu import bpftrace_guest
from qemu.guest import Guest, Options
from tests.booted.batch import batch
from tests.handlers.script.cases import Case
from tests.handlers.script.of_bpftrace import LEAST, error_trouble, language_cases, summary, unmet

OPTIONS = {"json": "-json", "quiet": "-q", "unsafe": "-unsafe", "dry": "-dry-run", "no-warnings": "-no-warnings"}
BESIDE = {
    "json": "-fjson", "quiet": "-q", "unsafe": "--unsafe", "dry": "--dry-run", "no-warnings": "--no-warnings",
    "verbose": "-v", "runtime-errors": "-k",
}  # fmt: skip
"""The same options of bpftrace's."""
KERNEL = "6.1 cloud"
FULL = bool(os.environ.get("OPTPROBE_FULL"))
MARK = "@@case "
FAILED = "optprobe: "
LONGEST = 20
"""Seconds after which a script ends that does not call exit: it has failed."""
INTERRUPTED = 0.5
_COLOURS = re.compile(r"\x1b\[\d*m")


def troubles_in_guest(guest: Guest, cases: Sequence[Case]) -> dict[str, str]:
    """Return what is wrong with each case in the guest, "" where nothing is, by `TOPIC: NAME`."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(number) for number in range(len(cases))]
        lines = ["set optprobe exit-on-error off", *_DEFINITIONS]
        for number, (case, output) in enumerate(zip(cases, outputs, strict=True)):
            lines += [f'python print("\\n{MARK}{number}")', *_lines(case, output)]
        lines.append(f'python print("\\n{MARK}{len(cases)}")')
        printed = batch(guest, lines, timeout=600).output
        sections = re.split(rf"\n{MARK}\d+\n", printed)
        assert len(sections) == len(cases) + 2, printed[-3000:]
        return {
            str(case): _trouble(case, output.read_text() if output.exists() else section)
            for case, output, section in zip(cases, outputs, sections[1:], strict=False)
        }


_DEFINITIONS = (
    "python\nimport io, os, signal, sys, threading",
    "def attempt(line):\n  try: gdb.execute(line)\n  except gdb.error as error: print(error)",
    f"def interrupt(): threading.Timer({INTERRUPTED}, os.kill, (os.getpid(), signal.SIGINT)).start()\nend",
)


def _lines(case: Case, output: Path) -> Iterator[str]:
    """Yield GDB's lines that run a case."""
    words = [option for flag, option in OPTIONS.items() if flag in case.flags]
    words += [word for flag in case.flags if flag.startswith("format=") for word in ("-f", flag.partition("=")[2])]
    words += ["-guest", case.work] if case.work else ["-for", str(LONGEST)]
    words += ["-o", str(output)] if "output" in case.flags else []
    if "stdin" in case.flags:
        yield f"python sys.stdin = io.StringIO({case.program!r})"
        words.append("-")
    elif "\n" in case.program:
        file = output.with_suffix(".bt")
        file.write_text(case.program)
        words.append(str(file))
    else:
        words += ["-e", case.program]
    if "interrupt" in case.flags:
        yield "python interrupt()"
    yield f"python attempt({f'optprobe script {shlex.join([*words, *case.arguments])}'!r})"


def _trouble(case: Case, printed: str) -> str:
    failed = next((line for line in printed.splitlines() if line.startswith(FAILED)), "")
    if failed or case.error:
        return error_trouble(case, printed if failed else f"no error, but {printed!r}")
    return case.trouble(printed)


def troubles_of_bpftrace(guest: Guest, cases: Sequence[Case]) -> Iterator[tuple[Case, str]]:
    """Yield each case with what bpftrace itself in a guest does not do as it says, "" where nothing is."""
    for case in cases:
        words = [option for flag, option in BESIDE.items() if flag in case.flags]
        words += [word for flag in case.flags if flag.startswith("format=") for word in ("-f", flag.partition("=")[2])]
        words += ["-c", f"/bin/{case.work}"] if case.work else []
        words += ["-o", "/tmp/output"] if "output" in case.flags else []
        words += ["-" if "stdin" in case.flags else "/tmp/case.bt", *case.arguments]
        program = base64.b64encode(f"{case.program}\n".encode()).decode()
        seconds = 10 if "interrupt" in case.flags else LONGEST * 3
        run = f"timeout -s INT {seconds} bpftrace {shlex.join(words)} < /tmp/case.bt"
        after = "; cat /tmp/output" if "output" in case.flags else ""
        line = f"echo {program} | base64 -d > /tmp/case.bt; PATH=$PATH:/usr/bin; {run} 2>&1{after}"
        status, printed = guest.run(line, timeout=bpftrace_guest.TIMEOUT)
        if case.error:
            yield case, "" if status else f"no error, but {printed!r}"
        elif case.status is not None and status != case.status:
            yield case, f"status {status}"
        else:
            yield case, case.trouble(_COLOURS.sub("", printed))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/compat", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="of tests/handlers/script/bpftrace; all without any")
    parser.add_argument("--beside", action="store_true", help="have bpftrace 0.23 run them, which takes long")
    arguments = parser.parse_args(words)
    cases = [case for case in language_cases() if not arguments.topics or case.topic in arguments.topics]
    if not cases:
        parser.error("no case has such a topic")
    if arguments.beside:
        with Guest.start(bpftrace_guest.options("trixie", KERNEL)) as guest:
            differ = 0
            for case, trouble in troubles_of_bpftrace(guest, cases):
                differ += bool(trouble)
                if trouble:
                    print(f"{case}: {trouble}", flush=True)
        print(f"bpftrace does what {len(cases) - differ} of {len(cases)} cases say")
        return 0
    with Guest.start(Options()) as guest:
        troubles = troubles_in_guest(guest, cases)
    print("\n".join(summary(troubles)))
    expected = {name for name in unmet() if name in troubles}
    met = sum(not trouble for trouble in troubles.values())
    failed = {name for name, trouble in troubles.items() if trouble}
    return int(failed != expected or met < LEAST * len(troubles))


if __name__ == "__main__":
    sys.exit(main())
