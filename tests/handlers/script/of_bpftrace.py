"""What bpftrace's own runtime tests say of its language, as cases of ours: bpftrace/*.txt, one file for one of theirs.

bpftrace 0.23.2 has 800 cases in 31 files of tests/runtime. Of the language are those whose script has no probe but
BEGIN, END and interval: 404. Each has one case here, which `LIKE` names: the same fact with a program and values of its
own. Out of scope is what the probes themselves do, and what is not a script:

    uprobe, struct, complex_types, dwarf, languages    programs of their own, which are built for the tests
    usdt, watchpoint, selftest                         what optprobe refuses, and their test driver
    addrspace, intptrcast                              kprobes and uprobes only
    the rest of each file below                        probes of the kernel, listings, the usage text

bpftrace/unmet has the cases that are not as in bpftrace, with the reasons. One that is met all the same fails the
suite. `scripts/compat` runs all in a guest, and prints how many are met; with `--beside` bpftrace runs them.

FLAGS: guest: the case needs a kernel's types, symbols or files. json, quiet, unsafe, dry, no-warnings, format=NAME: an
option of the command. output: into a file, which is then looked at. stdin: the script comes from there. interrupt: it
ends by Ctrl-C. verbose, runtime-errors: options of bpftrace's
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from gdb_optprobe.errors import OptprobeError
from tests.handlers.script.cases import Case, cases
from tests.handlers.script.running import ran

FOLDER = Path(__file__).with_name("bpftrace")
SCOPE: Mapping[str, tuple[int, int]] = {
    "array": (3, 32), "basic": (24, 62), "btf": (5, 14), "builtin": (30, 48), "call": (91, 139), "config": (6, 9),
    "file-output": (4, 4), "for": (17, 17), "intcast": (6, 8), "json-output": (37, 42), "other": (66, 74),
    "pid_namespace": (1, 4), "pointers": (22, 25), "precedence": (4, 4), "probe": (5, 92), "regression": (8, 19),
    "signals": (1, 3), "signed_ints": (8, 8), "strcontains": (18, 21), "tuples": (22, 28), "variable": (26, 29),
}  # fmt: skip
"""By file of bpftrace's: its cases of the language, and all."""
LEAST = 0.95
"""The part of the cases that has to be met."""


def language_cases() -> list[Case]:
    return [*cases(FOLDER, whole=True)]


def unmet() -> dict[str, str]:
    """Return why a case is not met, by `TOPIC: NAME`."""
    found: dict[str, str] = {}
    name = ""
    for line in (FOLDER / "unmet").read_text().splitlines():
        if line.startswith("    "):
            found[name] = f"{found[name]} {line.strip()}".strip()
        elif line and not line.startswith("#"):
            name = line
            found[name] = ""
    return found


def trouble_on_host(case: Case) -> str:
    """Run a case by the interpreter. Return what is wrong; "" if nothing is."""
    flags = {name: name in case.flags for name in ("json", "quiet", "unsafe")}
    try:
        found = ran(case.program, case.arguments, **flags)
    except OptprobeError as error:
        return error_trouble(case, error.message)
    if case.error:
        return f"no error, but {found.printed!r}"
    if case.status is not None and found.status != case.status:
        return f"status {found.status}"
    return case.trouble("".join([found.printed, *(f"WARNING: {each}\n" for each in found.script.warnings)]))


def error_trouble(case: Case, message: str) -> str:
    """Return what is wrong with an error; "" if it is the one that the case is about."""
    return "" if case.error and case.error in message else message


def summary(troubles: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines that say how many cases are met, and which are not. troubles: by `TOPIC: NAME`, "" where met."""
    reasons = unmet()
    failed = {name: trouble for name, trouble in troubles.items() if trouble}
    met = len(troubles) - len(failed)
    yield f"{met} of {len(troubles)} cases are as in bpftrace 0.23.2 ({100 * met / len(troubles):.1f} %)"
    for name, trouble in failed.items():
        why = reasons.get(name) or f"UNEXPECTED: {' '.join(trouble.split())[:300]}"
        yield f"    {name}: {why}"
    for name in reasons.keys() & troubles.keys() - failed.keys():
        yield f"    {name}: UNEXPECTED: it is met, and listed in {FOLDER.name}/unmet"
