"""The running thread and CPU of a kernel, by its per-CPU variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le import current as ppc64le
from gdb_optprobe.guest.linux.arch.ppc64le.current import Paca
from gdb_optprobe.guest.linux.arch.x86_64 import current as x86_64
from gdb_optprobe.guest.linux.kernel import Kernel, Located
from gdb_optprobe.handlers.interpreter import Hit, evaluate
from gdb_optprobe.handlers.ir import Expr, Load
from gdb_optprobe.handlers.scope import Missing
from tests.guest.blobs import FakeMemory

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
