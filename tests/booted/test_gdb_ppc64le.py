"""A stock GDB on the ppc64le guest: registers and memory of every vCPU, breakpoints in the kernel's text."""

from __future__ import annotations

from qemu.guest import Guest
from tests.booted.addresses import address_of
from tests.booted.batch import MARK, batch
from tests.booted.gdb import Console

LOCAL_ENTRY = 8
LITTLE_ENDIAN_64 = 1 << 63 | 1

STATE = f"""\
python
import json
def word(name): return int(gdb.newest_frame().read_register(name)) & (1 << 64) - 1
seen = []
for thread in gdb.selected_inferior().threads():
    thread.switch()
    seen.append({{name: word(name) for name in ("pc", "msr", "lr", "ctr", "cr", "xer", "r1", "r13")}})
packet = gdb.selected_inferior().connection.send_packet
packet("Qqemu.PhyMemMode:1")
physical = packet("m0,10").decode()
packet("Qqemu.PhyMemMode:0")
print("{MARK}state")
print(json.dumps({{"vcpus": seen, "physical": physical, "virtual": packet("mc000000000000000,10").decode()}}))
end"""


def test_every_vcpu_and_both_kinds_of_memory(ppc_guest: Guest) -> None:
    seen = batch(ppc_guest, STATE.splitlines(), source=False)
    state = seen.json("state")
    assert len(state["vcpus"]) == 2
    assert all(vcpu["msr"] & LITTLE_ENDIAN_64 == LITTLE_ENDIAN_64 for vcpu in state["vcpus"])
    pacas = {vcpu["r13"] for vcpu in state["vcpus"]}
    assert len(pacas) == 2 and all(paca >> 60 == 0xC for paca in pacas), "the guest idles in its kernel"
    # Linux runs where it was linked for, at the start of memory.
    assert state["physical"] == state["virtual"]
    assert address_of(ppc_guest, "_stext") == 0xC << 60


def test_a_breakpoint_in_the_kernel(ppc_guest: Guest) -> None:
    entry = address_of(ppc_guest, "vfs_read")
    with Console(ppc_guest, bare=True) as gdb:
        gdb("set confirm off")
        gdb(f"target remote {ppc_guest.gdb_socket}")
        gdb(f"break *{entry + LOCAL_ENTRY:#x}")
        gdb("ignore 1 1000000")
        gdb.send("continue")
        assert "20+0 records out" in ppc_guest.check("dd if=/dev/zero of=/dev/null bs=1 count=20 2>&1")
        gdb.interrupt()
        hits = int(gdb("info breakpoints").split("breakpoint already hit ")[1].split()[0])
    assert 20 <= hits < 200, "every call comes through the local entry"
    assert ppc_guest.check("echo alive") == "alive\n"
