"""Return probes on aarch64: as exact as on x86-64, beside the guest's own, with signed return addresses too.

The guest's own is a trap at a function's first instruction, where ours is: so it is at the function's caller.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qemu.guest import Guest
from tests.booted.conftest import Boot
from tests.booted.test_returns import exact, untrace


@pytest.fixture
def traced(arm_guest: Guest) -> Iterator[Guest]:
    """The session's guest; what a test switched on in its tracer is off afterwards."""
    yield arm_guest
    untrace(arm_guest)


def test_eight_processes(traced: Guest) -> None:
    exact(traced, ("vfs_read",), beside=("ksys_read",))


def test_eight_processes_with_signed_addresses_and_atomics_of_newer_cpus(boot: Boot) -> None:
    """Of Debian's 6.12, where the table of calls is in memory that the kernel lends."""
    guest = boot(arch="aarch64", suite="trixie", cpu="max,pauth-impdef=on", smp=4)
    exact(guest, ("vfs_read",), beside=("ksys_read",))
    assert guest.problems() == []
