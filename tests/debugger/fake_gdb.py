"""GDB and QEMU's stub as far as packets go: which vCPU GDB believes the stub means, and which one it does mean.

    GDB 13   `Inferior.read_memory` is about the selected thread
    GDB 16   it is about the process, which the stub takes for its first vCPU; a frame that is selected is another one
             once a register was written
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

PC = 0x10
FIRST = 0
PROCESS = "1.0"
OUTER = 0x0BAD
"""Every register of an outer frame."""


class Error(Exception):
    """gdb.error."""


class MemoryError_(Error):
    """gdb.MemoryError."""


class Stub:
    """QEMU's: registers and user memory of each vCPU; what is in `kernel` is every vCPU's that is not in user mode."""

    def __init__(self, vcpus: int) -> None:
        self.general = FIRST
        self.pcs = [0x1000 * (number + 1) for number in range(vcpus)]
        self.user: list[dict[int, int]] = [{} for _ in range(vcpus)]
        self.kernel: dict[int, int] = {}
        self.packets: list[str] = []
        self.in_user_mode: set[int] = set()

    def memory(self, address: int) -> dict[int, int]:
        if address >> 63:
            return {} if self.general in self.in_user_mode else self.kernel
        return self.user[self.general]

    def ask(self, packet: str) -> bytes:
        self.packets.append(packet)
        if found := re.fullmatch(r"Hg(?:p1\.)?([0-9a-f]+)", packet):
            self.general = max(int(found[1], 16), 1) - 1
        elif found := re.fullmatch(r"m([0-9a-f]+),([0-9a-f]+)", packet):
            at = int(found[1], 16)
            wanted = range(at, at + int(found[2], 16))
            if any(each not in self.memory(each) for each in wanted):
                return b"E14"
            return bytes(self.memory(each)[each] for each in wanted).hex().encode()
        elif found := re.fullmatch(r"M([0-9a-f]+),[0-9a-f]+:(.*)", packet):
            at = int(found[1], 16)
            if at not in self.memory(at):
                return b"E14"
            self.memory(at).update(enumerate(bytes.fromhex(found[2]), at))
        elif found := re.fullmatch(r"P10=(.*)", packet):
            self.pcs[self.general] = int.from_bytes(bytes.fromhex(found[1]), "little")
        elif found := re.fullmatch(r"vCont;s:([0-9a-f]+)", packet):
            # At a stop the stub means the vCPU that has stopped.
            self.general = int(found[1], 16) - 1
            self.pcs[self.general] += 1
            return b"T05"
        else:
            return b""
        return b"OK"


class Names(ModuleType):
    """GDB's module as far as it must be there to import what uses it: classes, constants and functions by any name."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        made: object = 0
        if not name.isupper():
            made = type(name, (Exception,), {}) if name[0].isupper() or "rror" in name else Names(name)
        setattr(self, name, made)
        return made

    def __call__(self, *_: object, **__: object) -> None:
        """Return nothing, as for a function that only does something."""


class _Word(int):
    """A value of GDB's."""

    type = SimpleNamespace(code=1, sizeof=8)


class Flags(_Word):
    """A value of 4 bytes, which is signed."""

    type = SimpleNamespace(code=1, sizeof=4)


class Gdb(Names):
    """The module, with one inferior. later: whether it is a GDB 16."""

    error = Error
    MemoryError = MemoryError_

    def __init__(self, vcpus: int, later: bool) -> None:
        super().__init__("gdb")
        self.stub = Stub(vcpus)
        self.later = later
        self.belief = "1.1"
        self.cached: dict[int, int] = {}
        self.unwritable: set[str] = set()
        self.others = {"r15": 15, "rsp": 0xFFFF_8000_0000_0000}
        self.outer = self.same_stack = False
        self.unwound = 0
        self.monitor: list[str] = []
        self.executed: list[str] = []
        self._inferior = SimpleNamespace(num=1, read_memory=self._read_memory, write_memory=self._write_memory)
        self._all = [
            SimpleNamespace(
                num=n + 1, ptid=(1, n + 1, 0), inferior=self._inferior, switch=self._switch(n), is_valid=lambda: True
            )
            for n in range(vcpus)
        ]
        self._inferior.threads = lambda: self._all
        self._selected = self._all[0]
        self.connection = SimpleNamespace(send_packet=self.stub.ask, is_valid=lambda: True)
        self.RemoteTargetConnection = SimpleNamespace
        self.InferiorThread = SimpleNamespace

    @property
    def agrees(self) -> bool:
        """Whether what GDB believes of the stub is so."""
        return max(int(self.belief.split(".")[1]), 1) - 1 == self.stub.general

    # what the product uses -------------------------------------------------------------------------------------------

    def selected_inferior(self) -> SimpleNamespace:
        return self._inferior

    def selected_thread(self) -> SimpleNamespace:
        return self._selected

    TYPE_CODE_VOID = 9

    def newest_frame(self) -> SimpleNamespace:
        """Its caller is unwound, and read."""
        self.unwound += 1
        older = SimpleNamespace(
            is_valid=lambda: True,
            select=self._select_older,
            read_register=lambda name: _Word(self._register("sp") if name == "sp" and self.same_stack else OUTER),
            older=lambda: None,
        )
        return SimpleNamespace(
            is_valid=lambda: True, select=self._select_newest, read_register=self._register, older=lambda: older
        )

    def Value(self, value: int | str) -> SimpleNamespace:
        """Of a pointer to bytes, or a string."""
        if isinstance(value, str):
            return SimpleNamespace(type=SimpleNamespace(target=lambda: SimpleNamespace(pointer=lambda: None)))
        return SimpleNamespace(cast=lambda _: _Pointer(self, value))

    def invalidate_cached_frames(self) -> None:
        self.outer = False

    def execute(self, line: str, to_string: bool) -> str:
        self.executed.append(line)
        if line == "maint flush register-cache":
            self.cached.clear()
        if line.startswith("monitor cpu"):
            self.monitor.append(line)
        return "* CPU #2: thread_id=1\n" if line == "monitor info cpus" else "7\n" if "$pid" in line else ""

    def parse_and_eval(self, expression: str) -> SimpleNamespace | _Word | None:
        if re.fullmatch(r"\$\w+", expression):
            name = expression[1:]
            if name not in ("rip", "pc", "sp", "pid", *self.others):
                return SimpleNamespace(type=SimpleNamespace(code=self.TYPE_CODE_VOID))
            is_same = name in ("sp", "rsp") and self.same_stack
            return _Word(OUTER) if self.outer and not is_same else self._register(name)
        found = re.fullmatch(r"\$(\w+) = (0x[0-9a-f]+)", expression)
        assert found is not None
        name, value = found[1], int(found[2], 16)
        if self.outer:
            raise Error("Attempt to assign to an unmodifiable value.")
        if name in self.unwritable:
            raise Error(f"cannot write {name}")
        if name == "rip":
            self._mean(f"1.{self._selected.num}")
            self.stub.ask(f"P{PC:x}={value.to_bytes(8, 'little').hex()}")
            self.cached[self._selected.num] = value
        else:
            self.others[name] = value
        self.outer = self.later
        return None

    # GDB's side ------------------------------------------------------------------------------------------------------

    def _switch(self, number: int) -> Callable[[], None]:
        def switch() -> None:
            if self._selected is not self._all[number]:
                self.outer = False
            self._selected = self._all[number]

        return switch

    def _select_older(self) -> None:
        self.outer = True

    def _select_newest(self) -> None:
        self.outer = False

    def _register(self, name: str) -> _Word:
        if name == "pid":
            raise Error("not told")
        if name not in ("rip", "pc"):
            value = self.others["rsp" if name == "sp" else name]
            return value if isinstance(value, Flags) else _Word(value)
        number = self._selected.num
        if number not in self.cached:
            self._mean(f"1.{number}")
            self.cached[number] = self.stub.pcs[self.stub.general]
        return _Word(self.cached[number])

    def _mean(self, thread: str) -> None:
        if self.belief != thread:
            self.stub.ask(f"Hgp{thread}")
            self.belief = thread

    def read_as(self, thread: str, address: int, size: int) -> bytes:
        self._mean(thread)
        answer = self.stub.ask(f"m{address:x},{size:x}")
        if answer.startswith(b"E"):
            raise MemoryError_(f"Cannot access memory at address {address:#x}")
        return bytes.fromhex(answer.decode())

    def _for_python(self) -> str:
        return PROCESS if self.later else f"1.{self._selected.num}"

    def _read_memory(self, address: int, size: int) -> bytes:
        return self.read_as(self._for_python(), address, size)

    def _write_memory(self, address: int, data: bytes) -> None:
        self._mean(self._for_python())
        if self.stub.ask(f"M{address:x},{len(data):x}:{data.hex()}") != b"OK":
            raise MemoryError_(f"Cannot access memory at address {address:#x}")


class _Pointer:
    def __init__(self, gdb: Gdb, address: int) -> None:
        self._gdb, self._address = gdb, address

    def __add__(self, distance: int) -> _Pointer:
        return _Pointer(self._gdb, self._address + distance)

    def string(self, encoding: str, length: int) -> str:
        thread = f"1.{self._gdb.selected_thread().num}"
        return self._gdb.read_as(thread, self._address, length).decode(encoding)
