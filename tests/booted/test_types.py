"""GDB prints by the kernel's own types, without a vmlinux."""

from __future__ import annotations

import re

from qemu.guest import Guest
from tests.booted.gdb import Console


def test_gdb_prints_as_we_do(linux: Guest) -> None:
    with Console(linux) as gdb:
        sizes = gdb("print sizeof(struct task_struct)"), gdb("optprobe print sizeof(struct task_struct)")
        assert len({re.findall(r"\d+$", each.strip())[0] for each in sizes}) == 1, sizes
        places = gdb("print/x (long)&((struct task_struct *)0)->comm"), gdb("optprobe type struct task_struct")
        (place,) = re.findall(r"0x[0-9a-f]+", places[0])
        assert re.search(rf"\bcomm\b.*/\* *{int(place, 16)} ", places[1]), places
        current = gdb("print (char *)((struct task_struct *)&init_task)->comm")
        assert '"swapper' in current, current
        assert "PIDTYPE_TGID" in gdb("print (enum pid_type)1")
        assert "has unknown type" in gdb("print jiffies"), "of variables there are no types"


def test_a_kernel_without_btf_has_none_and_says_so(ppc_guest: Guest) -> None:
    with Console(ppc_guest) as gdb:
        assert "No struct type named file." in gdb("print sizeof(struct file)")
        assert "BTF" in gdb("optprobe doctor")
