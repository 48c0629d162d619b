"""Hits that stop a guest with one vCPU: what is looked at meanwhile must not let the guest run on."""

from __future__ import annotations

import pytest

from tests.booted.conftest import Boot
from tests.booted.gdb import Console

SENDS = "ip addr add 10.9.9.1/24 dev dummy0; ip link set dummy0 up; ping -c 3 -W 1 10.9.9.2 >/dev/null"
SENDS += "; ip link set dummy0 down; cat /sys/class/net/dummy0/statistics/tx_packets"


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_hits_in_a_module_are_counted(boot: Boot, arch: str) -> None:
    """Each is one stop, at which commands of our breakpoint move the vCPU on, and the module is looked for."""
    guest = boot(arch=arch, smp=1, modules=("dummy",))
    guest.check("insmod /lib/modules/dummy.ko")
    with Console(guest) as gdb:
        assert "Probe 1" in gdb("optprobe add dummy_xmit -tier emulated")
        gdb.send("continue")
        sent = int(guest.run(SENDS)[1].split()[-1])
        gdb.interrupt()
        assert gdb.hits(1) == sent > 0
        assert "holds what we wrote" in gdb("optprobe check")
    assert guest.problems() == []
