"""The running thread and CPU of a kernel, by its per-CPU variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest import abi
from gdb_optprobe.guest.linux.arch.aarch64 import current as aarch64
from gdb_optprobe.guest.linux.arch.ppc64le import current as ppc64le
from gdb_optprobe.guest.linux.arch.ppc64le.current import Paca
from gdb_optprobe.guest.linux.arch.x86_64 import current as x86_64
from gdb_optprobe.guest.linux.current import Current
from gdb_optprobe.guest.linux.kernel import Kernel, Located
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.scope import KernelScope, Site
from gdb_optprobe.handlers.interpreter import Hit, evaluate
from gdb_optprobe.handlers.ir import Expr, Load
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.isa.aarch64 import AARCH64
from tests.guest.blobs import FakeMemory
from tests.guest.linux.fake_kernel import Machine, Pages, symbols
from tests.guest.linux.fake_kernel import kernel as kernel_in

PER_CPU, TASK, PACA, OFFSETS = (
    0xFFFF_8880_0000_0000,
    0xFFFF_8881_0000_0000,
    0xC000_0000_0001_0000,
    0xC000_0000_0002_0000,
)
MEMBERS = {("task_struct", "pid"): 0x970, ("task_struct", "tgid"): 0x974, ("task_struct", "comm"): 0xBA0}


class Names:
    def __init__(self, addresses: Mapping[str, int]) -> None:
        self.addresses = addresses

    def address(self, name: str) -> int | None:
        return self.addresses.get(name)

    def lookup(self, name: str) -> Sequence[int]:
        return [self.addresses[name]] if name in self.addresses else []

    def at(self, address: int) -> Located | None:
        return None

    def names_at(self, addresses: Iterable[int]) -> Sequence[str]:
        return ["" for _ in addresses]

    def function_bounds(self, address: int) -> tuple[int, int] | None:
        return None


class Offsets:
    def __init__(self, known: Mapping[tuple[str, str], int]) -> None:
        self.known = known

    def offset(self, struct: str, member: str) -> int:
        if (struct, member) not in self.known:
            raise OptprobeError(f"struct {struct} has no member {member} in this kernel")
        return self.known[struct, member]


def kernel(addresses: Mapping[str, int], known: Mapping[tuple[str, str], int]) -> Kernel:
    return Kernel(FakeMemory(), Names(addresses), Offsets(known))


def value(node: Expr | Missing, pieces: Mapping[int, bytes], **registers: int) -> int:
    assert not isinstance(node, Missing)
    memory = FakeMemory()
    for address, data in pieces.items():
        memory.place(address, data)
    return evaluate(node, Hit(registers, memory.read, PER_CPU))


@pytest.mark.parametrize(
    ("addresses", "more"),
    [
        ({"current_task": 0x100, "cpu_number": 0x108}, {}),
        ({"pcpu_hot": 0xF0}, {("pcpu_hot", "current_task"): 0x10, ("pcpu_hot", "cpu_number"): 0x18}),
    ],
)
def test_x86_64(addresses: Mapping[str, int], more: Mapping[tuple[str, str], int]) -> None:
    found = x86_64.current(kernel(addresses, {**MEMBERS, **more}))
    pieces = {PER_CPU + 0x100: TASK.to_bytes(8, "little") + b"\3\0\0\0"}
    assert value(found.task, pieces) == TASK
    assert value(found.cpu, pieces) == 3
    assert value(found.per_cpu, {}) == PER_CPU
    assert found.members == {"pid": 0x970, "tgid": 0x974, "comm": 0xBA0}
    assert isinstance(found.task, Load) and found.task.mapped


def test_what_an_x86_64_kernel_lacks_is_said() -> None:
    found = x86_64.current(kernel({}, {}))
    assert isinstance(found.task, Missing) and "pcpu_hot" in found.task.message
    assert isinstance(found.cpu, Missing)
    assert isinstance(found.members["comm"], Missing) and "task_struct" in found.members["comm"].message


def test_ppc64le() -> None:
    found = ppc64le.current(Paca(current=0x10, number=8, pid=2024, comm=2528, per_cpu_offset=OFFSETS))
    pieces = {PACA + 8: b"\2\0", PACA + 16: TASK.to_bytes(8, "little"), OFFSETS + 16: PER_CPU.to_bytes(8, "little")}
    assert value(found.task, pieces, r13=PACA) == TASK
    assert value(found.cpu, pieces, r13=PACA) == 2
    assert value(found.per_cpu, pieces, r13=PACA) == PER_CPU
    assert found.members == {"pid": 2024, "tgid": 2028, "comm": 2528}


ENTRY, TEXT, IDMAP = 0xFFFF_8000_0801_0000, 0xFFFF_8000_0800_0000, 0xFFFF_8000_0802_0000
MODULE, BPF = TEXT - 0x4000_0000, 0xFFFF_8000_1234_5000 + (1 << 44)
TRAMP, TRAMPOLINE = TEXT + 0x83_0000, 0xFFFF_FFFD_FFBF_E000
"""The text by which programs enter a kernel that is hidden from them, and its copy, where it runs."""
BASES = (0xFFFF_0000_1000_0000, 0xFFFF_0000_2000_0000)


def two_cpus() -> Kernel:
    """Where CPU 1 runs TASK, whose pid is 7."""
    memory = Pages()
    names = {"d_nr_cpu_ids": TEXT, "d___per_cpu_offset": TEXT + 8, "d_runqueues": 0x100}
    names |= {"__entry_text_start": ENTRY, "__entry_text_end": ENTRY + 0x1000}
    names |= {"_stext": TEXT, "_etext": TEXT + 0x80_0000}
    names |= {"__idmap_text_start": IDMAP, "__idmap_text_end": IDMAP + 0x1000}
    names |= {"__entry_tramp_text_start": TRAMP, "__entry_tramp_text_end": TRAMP + 0x1000}
    for at in (TRAMP, TRAMPOLINE):
        memory.put_words(at + 0x400, *range(64))
    memory.put_words(BPF, *range(64, 0, -1))
    memory.put(TEXT, (2).to_bytes(4, "little"))
    memory.put_words(TEXT + 8, *BASES)
    memory.put_words(BASES[1] + 0x108, TASK)
    memory.put(TASK + 0x970, (7).to_bytes(4, "little"))
    return kernel_in(memory, names, {"rq.curr": 8})


@pytest.mark.parametrize(
    ("registers", "number"),
    [
        ({"el": 0, "pc": 0x40_1000}, 1),
        ({"el": 1, "pc": ENTRY + 0x80}, 1),
        ({"el": 1, "pc": TRAMPOLINE + 0x400}, 1),
        ({"el": 1, "pc": IDMAP + 0x80}, 1),
        ({"el": 1, "pc": 0x4008_2080}, 1),
        ({"el": 1, "pc": TEXT + 0x80}, None),
        ({"el": 1, "pc": TRAMP + 0x400}, 1),
        ({"el": 1, "pc": MODULE}, None),
        ({"el": 1, "pc": BPF}, None),
    ],
)
def test_an_aarch64_cpu_has_no_thread_in_sp_el0_at_el0_and_in_entry_text(
    registers: dict[str, int], number: int | None
) -> None:
    machine: Any = Machine({}, registers | {"TPIDR_EL1": BASES[1]})
    assert aarch64.outside(two_cpus(), machine, machine.vcpus()[1]) == number


def test_an_x86_64_cpu_in_a_program_has_its_base_swapped_out() -> None:
    machine: Any = Machine({"cpl": 3, "gs_base": BASES[0], "k_gs_base": BASES[1]}, {"gs_base": BASES[0]})
    assert [x86_64.outside(two_cpus(), machine, vcpu) for vcpu in machine.vcpus()] == [1, None]
    machine.state[0]["k_gs_base"] = 0x1234
    with pytest.raises(OptprobeError, match="none of Linux's CPUs"):
        x86_64.outside(two_cpus(), machine, machine.vcpus()[0])


def test_which_ppc64le_cpu_is_in_a_program_is_not_known() -> None:
    machine: Any = Machine({"msr": 0x8000_0000_0000_D033}, {"msr": 0x8000_0000_0000_1033})
    with pytest.raises(OptprobeError, match="vCPU 0 runs a program"):
        ppc64le.outside(machine, machine.vcpus()[0])
    assert ppc64le.outside(machine, machine.vcpus()[1]) is None


def test_what_a_program_has_in_registers_is_not_taken_for_its_thread() -> None:
    found, mine = two_cpus(), 0x7FFF_0000_1000
    machine = Machine({"el": 0, "pc": 0x40_1000, "TPIDR_EL1": BASES[1], "SP_EL0": mine})
    running = Current(aarch64.THREAD, aarch64.THREAD, aarch64.THREAD, {"pid": 0x970})
    reads: Any = object()
    names = NamesAt(KernelScope(Site(0x40_1000, ""), cast(Any, symbols()), None, abi.of(AARCH64), running), reads=reads)
    arch = SimpleNamespace(outside=aarch64.outside)
    machine_: Any = machine
    machine_.selected = lambda: machine.vcpus()[0]
    guest: Any = SimpleNamespace(
        names_at=lambda address: names, arch=arch, kernel=found, machine=machine, current=running
    )

    def current() -> Current:
        scope = LinuxGuest.names_stopped_at(guest, 0x40_1000).names
        assert isinstance(scope, KernelScope)
        return scope.current

    def of(node: Expr | Missing) -> int:
        assert not isinstance(node, Missing)
        return evaluate(node, Hit({"SP_EL0": mine}, found.memory.read, 0))

    assert [of(node) for node in (current().task, current().cpu, current().per_cpu)] == [TASK, 1, BASES[1]]
    assert isinstance(LinuxGuest.names_stopped_at(guest, 0x40_1000).reads, Missing), "by the vCPU's own page tables"
    machine.state[0] |= {"el": 1, "pc": TEXT}
    assert current() is running
    machine.state[0] |= {"el": 0, "TPIDR_EL1": 0x1234}
    assert isinstance(missing := current().task, Missing) and "none of Linux's CPUs" in missing.message
