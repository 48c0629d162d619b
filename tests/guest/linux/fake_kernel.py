"""A kernel of a few pages: sparse memory, symbols, structures by name."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from gdb_optprobe.errors import OptprobeError, Unreadable
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.machine import Memory, Vcpu
from gdb_optprobe.guest.symbols import Symbols, SymbolTable

PAGE = 4096


class Clock:
    """In place of the module `time`: it stands but where a test lets time pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Pages:
    """Memory that exists where it was put."""

    def __init__(self) -> None:
        self.pages: dict[int, bytearray] = {}
        self.writes: list[int] = []

    def put(self, address: int, data: bytes) -> None:
        for offset, byte in enumerate(data):
            page = self.pages.setdefault((address + offset) // PAGE, bytearray(PAGE))
            page[(address + offset) % PAGE] = byte

    def put_words(self, address: int, *words: int) -> None:
        self.put(address, b"".join((word % 2**64).to_bytes(8, "little") for word in words))

    def read(self, address: int, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            at = address + len(found)
            page = self.pages.get(at // PAGE)
            if page is None:
                raise Unreadable(address, size)
            found += page[at % PAGE : at % PAGE + size - len(found)]
        return bytes(found)

    def write(self, address: int, data: bytes) -> None:
        self.read(address, len(data))
        self.writes.append(address)
        self.put(address, data)

    read_physical = read
    write_physical = write


class Structures:
    def __init__(self, offsets: Mapping[str, int]) -> None:
        self.offsets = offsets

    def offset(self, struct: str, member: str) -> int:
        try:
            return self.offsets[f"{struct}.{member}"]
        except KeyError:
            raise OptprobeError(f"no member {member} in struct {struct}") from None


class Machine(Pages):
    """vCPUs with the registers they are given."""

    def __init__(self, *registers: dict[str, int]) -> None:
        super().__init__()
        self.state = list(registers)

    def vcpus(self) -> Sequence[Vcpu]:
        return [Vcpu(number, f"1.{number + 1}") for number in range(len(self.state))]

    def registers(self, vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
        return {name: self.state[vcpu.number].get(name, 0) for name in names}

    def write_registers(self, vcpu: Vcpu, values: Mapping[str, int]) -> None:
        self.state[vcpu.number].update(values)

    def translates_pages(self) -> bool:
        return True

    def run_until(self, addresses: Sequence[int], timeout: float) -> Vcpu | None:
        return None


def symbols(**addresses: int) -> SymbolTable:
    """Code symbols, but for names that begin with `d_`, which are data."""
    rows = sorted((address, name) for name, address in addresses.items())
    types = "".join("d" if name.startswith("d_") else "T" for _, name in rows)
    return SymbolTable(Symbols(array("Q", [a for a, _ in rows]), [name.removeprefix("d_") for _, name in rows], types))


def kernel(memory: Memory, names: Mapping[str, int], offsets: Mapping[str, int] | None = None) -> Kernel:
    return Kernel(memory, symbols(**names), Structures(offsets) if offsets is not None else None)
