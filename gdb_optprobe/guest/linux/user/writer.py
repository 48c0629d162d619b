"""Write into programs: the guest does it itself, and copies a shared page first.

    vCPU at a safe point      thunk (code)                               table (data)
    ┌───────────────┐  PC,    ┌──────────────────────────────────────┐   ┌───────────────────────────────┐
    │ …             │ ──────► │ save all; of each row:               │◄──┤ reg │ PC │ done │             │
    │               │         │   access_remote_vm(mm, …, FORCE)     │   │ mm │ address │ data │ … │ row  │
    │               │ ◄────── │   mmput(mm); restore, it too; ret    │──►│ …                      result │
    └───────────────┘         └──────────────────────────────────────┘   │ the rows' data                │
          of the table: see program_writer.py                            └───────────────────────────────┘
ptrace writes by access_remote_vm: it breaks copy-on-write of a private mapping, whatever its protection, so neither the
file nor another process sees the write (mm/memory.c). It may sleep, so the vCPU must be at a safe point. The reference
to each mm is taken from outside, while the guest is stopped, and dropped by the thunk.

Once a vCPU has the PC and the table, the guest does the rest even if the debugger is killed. Several vCPUs may be in
the thunk at once, with a table each: before its last two instructions the thunk has copied what it needs of the table
to the stack.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.kernel import MASK, Kernel
from gdb_optprobe.guest.linux.rw_semaphores import RwSemaphore
from gdb_optprobe.guest.linux.safe_points import SafePoints
from gdb_optprobe.guest.linux.user.mm import LATER, Busy
from gdb_optprobe.guest.linux.user.program_writer import HEAD, ROW, Writing
from gdb_optprobe.guest.linux.user.programs import Programs
from gdb_optprobe.guest.machine import Machine, Vcpu
from gdb_optprobe.guest.native_call import CallFailed

TABLE_SIZE = 2048
ROWS = 16
DATA = HEAD.size + ROW.size * ROWS + 8
TABLES = 8
SIZE = TABLES * TABLE_SIZE
LARGEST = TABLE_SIZE - DATA
"""Bytes of data that one table has room for."""

FLAGS = ("FOLL_WRITE", "FOLL_FORCE")
PEEKS, POKES = "generic_ptrace_peekdata", "generic_ptrace_pokedata"


@dataclass(frozen=True, slots=True)
class Write:
    """`data` at `address` of the address space `mm`."""

    mm: int
    address: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Calls:
    """Addresses of the kernel's access_remote_vm and mmput."""

    write: int
    put: int


def calls(kernel: Kernel) -> Calls:
    """Return the addresses. Raises OptprobeError."""
    return Calls(kernel.address("access_remote_vm"), kernel.address("mmput"))


def check(programs: Programs) -> None:
    """Raise OptprobeError where a fact that every write needs is not known of this kernel."""
    kernel = programs.kernel
    flags(programs)
    calls(kernel)
    _users_at(kernel)
    _lock(kernel)
    kernel.offset("task_struct", "flags")


def _users_at(kernel: Kernel) -> int:
    return kernel.offset("mm_struct", "mm_users")


def _lock(kernel: Kernel) -> RwSemaphore:
    return RwSemaphore.of(kernel, "mm_struct", "mmap_lock", "mmap_sem")


@dataclass(frozen=True, slots=True)
class Started:
    """The writes that a vCPU carries out, and the registers that start it."""

    table: int
    writes: tuple[Write, ...]
    registers: Mapping[str, int]


@dataclass(frozen=True)
class Writer:
    """One thunk in code memory, at `address`, and TABLES tables of TABLE_SIZE bytes each, at `tables`, in data memory.

    avoid: returns whether the guest may stop at an address for another reason.
    """

    programs: Programs
    address: int
    tables: int
    avoid: Callable[[int], bool] = lambda address: False

    @property
    def machine(self) -> Machine:
        return self.programs.machine

    @property
    def kernel(self) -> Kernel:
        return self.programs.kernel

    def clear(self) -> None:
        """Make the tables, which are new, free."""
        for table in self._tables:
            self.machine.write(table, HEAD.pack(0, 0, 1))

    # one vCPU --------------------------------------------------------------------------------------------------------

    def start(self, vcpu: Vcpu, writes: Sequence[Write]) -> Started:
        """Have `vcpu`, which may sleep and holds no lock, carry out as many of `writes` as fit.

        With its new registers it runs the thunk, and afterwards it is back where it was. Spaces without users are left
        out. Raises Busy, OptprobeError.
        """
        table = next((table for table in self._tables if self._is_free(table)), None)
        if table is None:
            raise Busy("threads of the guest write into programs just now", LATER)
        taken = _that_fit(writes)
        alive = [write for write in taken if self._users(write.mm)]
        self._check_locks(alive)
        writing = self._writing
        at = self.machine.registers(vcpu, (writing.pc, writing.table))
        rows, data = b"", b""
        for write in alive:
            rows += ROW.pack(write.mm, write.address, table + DATA + len(data), len(write.data), self._flags, 0)
            data += write.data
        self.machine.write(table, (HEAD.pack(at[writing.table], at[writing.pc], 0) + rows).ljust(DATA, b"\0") + data)
        for write in alive:
            self._hold(write.mm)
        return Started(table, tuple(taken), {writing.pc: self.address, writing.table: table})

    def results(self, started: Started) -> tuple[bool, ...] | None:
        """Return, for each of its writes, whether it was carried out; None while it runs. Call it before `start` again.
        """
        if not self._is_free(started.table):
            return None
        rows = ROW.iter_unpack(self.machine.read(started.table + HEAD.size, ROW.size * ROWS))
        done = {(row[0], row[1]) for row in rows if row[5] == row[3]}
        return tuple((write.mm, write.address) in done for write in started.writes)

    def may_start(self, vcpu: Vcpu) -> bool:
        """Return whether the thread on `vcpu`, which is at one of `safe_points`, may sleep and holds no lock."""
        return self._points.may_call(vcpu)

    def safe_points(self) -> tuple[int, ...]:
        return self._points.points()

    def is_idle(self) -> bool:
        """Return whether no thread uses a table. A thread in the thunk's last instructions is found by its PC."""
        return all(map(self._is_free, self._tables))

    def recall(self, changes: Mapping[tuple[int, int], tuple[bytes, bytes]]) -> bool:
        """Replace bytes of pending writes, by (mm, address): first by second. Return whether a table is in use."""
        busy = [table for table in self._tables if not self._is_free(table)]
        for table in busy:
            for mm, address, data, size, *_ in ROW.iter_unpack(self.machine.read(table + HEAD.size, ROW.size * ROWS)):
                wrong, right = changes.get((mm, address), (b"", b""))
                if mm and len(wrong) == size and self.machine.read(data, size) == wrong:
                    self.machine.write(data, right)
        return bool(busy)

    # now -------------------------------------------------------------------------------------------------------------

    def write(self, writes: Sequence[Write], timeout: float) -> tuple[bool, ...]:
        """Run the guest until all is written. Return for each write whether it was carried out: not if space or page is
        gone. Raises CallFailed.
        """
        deadline = time.monotonic() + timeout
        done: list[bool] = []
        while len(done) < len(writes):
            vcpu = self._reach(deadline)
            try:
                started = self.start(vcpu, writes[len(done) :])
            except Busy:
                continue
            self.machine.write_registers(vcpu, started.registers)
            done += self._finish(started, deadline)
        return tuple(done)

    def _finish(self, started: Started, deadline: float) -> tuple[bool, ...]:
        to = calls(self.kernel)
        code = self._writing.code(self.address, to.write, to.put)
        end = self.address + len(code) - self._writing.last
        while (results := self.results(started)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise CallFailed(
                    "the guest has not written into its programs in time; it will finish by itself",
                    "let the guest run on, then try again",
                    unfinished=True,
                )
            # None before the time is up: something else has stopped the guest, as a probe does.
            if (vcpu := self._run([end], left)) is not None:
                self._return(vcpu)
        return results

    def _return(self, vcpu: Vcpu) -> None:
        """Set `vcpu`, which is at the thunk's last instruction, back to where it was."""
        registers = self.machine.registers(vcpu, self._writing.read)
        self.machine.write_registers(vcpu, self._writing.back(registers, self.kernel.word))

    def _reach(self, deadline: float) -> Vcpu:
        points = self.safe_points()
        while (left := deadline - time.monotonic()) > 0:
            vcpu = self._run(points, left)
            if vcpu is not None and self.may_start(vcpu):
                return vcpu
        raise CallFailed(
            "no thread of the guest came to where it can write into programs",
            "let the guest do something, then try again",
        )

    def _run(self, addresses: Sequence[int], timeout: float) -> Vcpu | None:
        vcpu = self.machine.run_until(addresses, timeout)
        self.programs.forget()
        return vcpu

    # the guest's -----------------------------------------------------------------------------------------------------

    @property
    def _points(self) -> SafePoints:
        return SafePoints(self.machine, self.kernel, self.programs.vcpus, self.avoid)

    @property
    def _writing(self) -> Writing:
        return self.programs.vcpus.writing

    @property
    def _tables(self) -> range:
        return range(self.tables, self.tables + SIZE, TABLE_SIZE)

    def _is_free(self, table: int) -> bool:
        return bool(HEAD.unpack(self.machine.read(table, HEAD.size))[2])

    def _users(self, mm: int) -> int:
        users: int = struct.unpack("<i", self.machine.read(self._count(mm), 4))[0]
        return max(users, 0)

    def _hold(self, mm: int) -> None:
        """Take a reference as mmget does: the guest is stopped. mmput in the thunk drops it."""
        self.machine.write(self._count(mm), struct.pack("<i", self._users(mm) + 1))

    def _count(self, mm: int) -> int:
        return mm + _users_at(self.kernel) & MASK

    def _check_locks(self, writes: Iterable[Write]) -> None:
        """Raise Busy where a lock is held: its holder could be this thread, if this were no safe point after all."""
        lock = _lock(self.kernel)
        if any(lock.state(self.kernel, mm).held for mm in {write.mm for write in writes}):
            raise Busy("a program's memory is being changed just now", LATER)

    @cached_property
    def _flags(self) -> int:
        return flags(self.programs)


def flags(programs: Programs) -> int:
    """Return the flags with which access_remote_vm writes into private copies: FOLL_WRITE and FOLL_FORCE. Raises
    OptprobeError. Types have them only where they are enumerators; the kernel's own ptrace reads a thread's memory with
    FOLL_FORCE, and writes it with both (kernel/ptrace.c). If both sources are known they must agree.
    """
    values = [value for name in FLAGS if (value := programs.constant(name)) is not None]
    found = _of_ptrace(programs)
    if len(values) == len(FLAGS) and found in (None, sum(values)):
        return sum(values)
    if found is None or len(values) == len(FLAGS):
        raise OptprobeError("how this kernel writes into the memory of a program is not known")
    return found


def _of_ptrace(programs: Programs) -> int | None:
    """Return the flags of ptrace's calls: the argument that differs between read and write, by one bit."""
    each = (programs.vcpus.numbers(programs.kernel, name) for name in (PEEKS, POKES))
    for reads, writes in zip(*each, strict=True):
        if len(reads) == len(writes) == 1:
            (read,), (write,) = reads, writes
            if read & write == read and bin(read ^ write).count("1") == 1:
                return int(write)
    return None


def _that_fit(writes: Sequence[Write]) -> Sequence[Write]:
    """Return the first of `writes` that fit into one table. Raises OptprobeError where the first does not fit."""
    size = 0
    for number, write in enumerate(writes[:ROWS]):
        size += len(write.data)
        if size > LARGEST:
            if not number:
                raise OptprobeError(f"{len(write.data)} bytes are more than can be written into a program at once")
            return writes[:number]
    return writes[:ROWS]
