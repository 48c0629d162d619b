"""Cases that are like bpftrace's own and need a kernel: its types, symbols and files, or the command's options."""

from __future__ import annotations

from qemu.guest import Guest
from tests.booted.bpftrace_cases import FULL, troubles_in_guest
from tests.handlers.script.of_bpftrace import language_cases, summary, unmet


def test_cases_in_a_guest(linux: Guest) -> None:
    """One GDB runs them all; in the full form those too that need no kernel."""
    cases = [case for case in language_cases() if FULL or "guest" in case.flags]
    troubles = troubles_in_guest(linux, cases)
    assert len(troubles) == len(cases) >= 30
    failed = {name for name, trouble in troubles.items() if trouble}
    assert failed == unmet().keys() & troubles.keys(), "\n".join(summary(troubles))
