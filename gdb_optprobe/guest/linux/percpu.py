"""Per-CPU variables: a symbol is an offset, and each CPU has its base in `__per_cpu_offset` (mm/percpu.c)."""

from __future__ import annotations

from dataclasses import dataclass

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import MASK, Kernel, NoSuchKernel

MOST_CPUS = 8192


@dataclass(frozen=True, slots=True)
class PerCpu:
    """`bases` of the possible CPUs, in the order of Linux's numbers."""

    kernel: Kernel
    bases: tuple[int, ...]

    @staticmethod
    def of(kernel: Kernel) -> PerCpu:
        count = int.from_bytes(kernel.memory.read(kernel.address("nr_cpu_ids"), 4), "little")
        if not 0 < count <= MOST_CPUS:
            raise NoSuchKernel(f"nr_cpu_ids is {count}: this kernel has not booted")
        at = kernel.address("__per_cpu_offset")
        data = kernel.read(at, at + 8 * count)
        return PerCpu(kernel, tuple(int.from_bytes(data[n : n + 8], "little") for n in range(0, len(data), 8)))

    def number(self, vcpu: int, base: int) -> int:
        """Return Linux's number of a vCPU, which has its CPU's base. Raises NoSuchKernel."""
        if base not in self.bases:
            raise NoSuchKernel(f"vCPU {vcpu} is none of Linux's CPUs just now")
        return self.bases.index(base)

    def addresses(self, symbol: str, struct: str = "", member: str = "") -> tuple[int, ...]:
        """Return the address of the variable, or a member of it, on each CPU."""
        offset = self.kernel.address(symbol) + (self.kernel.offset(struct, member) if struct else 0)
        return tuple(base + offset & MASK for base in self.bases)

    def words(self, symbol: str, struct: str = "", member: str = "") -> tuple[int, ...]:
        return tuple(self.kernel.word(at) for at in self.addresses(symbol, struct, member))

    def addresses_of_either(self, *places: tuple[str, str, str]) -> tuple[int, ...]:
        """Return `addresses` of the first of several (symbol, struct, member) that this kernel has: variables move."""
        missing: OptprobeError | None = None
        for place in places:
            try:
                return self.addresses(*place)
            except OptprobeError as error:
                missing = error
        raise missing or NoSuchKernel("no per-CPU variable asked for")
