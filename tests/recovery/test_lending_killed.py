"""A GDB is killed behind any of its writes while the guest lends memory, or has it back; the next one knows of it.

The guest's allocator has one block. What it has given and what it has got back are counted in its memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.arena import Lack
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.base import NOWHERE
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.linux import LinuxGuest
from gdb_optprobe.guest.linux.page_allocator import Pages
from gdb_optprobe.guest.machine import Vcpu
from gdb_optprobe.isa.x86_64.calling import CALLING
from gdb_optprobe.probes.linux_arena import LinuxArena
from gdb_optprobe.probes.module_tracker import ModuleTracker
from gdb_optprobe.probes.optimizer import Optimizer
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.recovery import adopt
from tests.examples import FULL, some
from tests.fake_guest import (
    CODE,
    DATA,
    FILL,
    LOOP,
    MEETING,
    PLAIN,
    START,
    TABLES,
    Body,
    FakeGuest,
    FakeMachine,
    program,
)
from tests.guest.linux import fake_kernel

ALLOCATE, FREE, FLUSH, FLAGS, WORDS = (START + 0x8000 + 0x100 * number for number in range(5))
BLOCK, GIVEN, TAKEN, FLUSHED, MAPPED = (WORDS + 8 * number for number in range(5))
"""Words of the guest: the block that the allocator has, how many it gave and got, whether all is flushed; an entry."""
AT, ORDER, PLACE = 0x7700_0000, 3, START + 0x74000
SIZE = 4096 << ORDER
ENTRY = TABLES + 64
NAMES = (("GFP_KERNEL", 0x3), ("GFP_NOWAIT", 0x2), ("__GFP_NOWARN", 0x8), ("__GFP_DIRECT_RECLAIM", 0x1))


def _rip(at: int, opcode: str, word: int, behind: int = 0) -> bytes:
    data = bytes.fromhex(opcode)
    return data + (word - at - len(data) - 4 - behind).to_bytes(4, "little", signed=True)


def _assembled(at: int, *parts: tuple[str, int] | str) -> bytes:
    made = b""
    for part in parts:
        made += bytes.fromhex(part) if isinstance(part, str) else _rip(at + len(made), *part)
    return made


ALLOCATES = _assembled(
    ALLOCATE,
    "31c0",  # xor %eax,%eax
    "83fe03",  # cmp $ORDER,%esi
    "7518",  # jne end
    ("488705", BLOCK),  # xchg %rax,BLOCK
    "4885c0",  # test %rax,%rax
    "740c",  # je end
    ("48ff05", GIVEN),  # incq GIVEN
    "9090909090",
    "c3",
)
FREES = _assembled(
    FREE,
    "4885ff",  # test %rdi,%rdi
    "740e",  # je end
    ("48893d", BLOCK),  # mov %rdi,BLOCK
    ("48ff05", TAKEN),  # incq TAKEN
    "c3",
)
FLUSHES = _assembled(FLUSH, ("48ff05", FLUSHED), "c3")


class Killed(BaseException):
    """GDB is dead."""


class Machine(FakeMachine):
    """left: writes of GDB's before it dies; None for ever. calls: what the guest runs of calls before that.

    ran: how much it has run of them.
    """

    left: int | None = None
    calls: int | None = None
    ran = 0

    def write(self, address: int, data: bytes) -> None:
        if self.left is not None:
            if not self.left:
                raise Killed
            self.left -= 1
        super().write(address, data)

    write_physical = write

    def registers(self, vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
        values = dict(zip(self.cpu.isa.registers, self.threads[vcpu.number], strict=True))
        return {name: values[name] for name in names}

    def write_registers(self, vcpu: Vcpu, values: Mapping[str, int]) -> None:
        if self.left == 0:
            raise Killed
        state = {**dict(zip(self.cpu.isa.registers, self.threads[vcpu.number], strict=True)), **values}
        self.threads[vcpu.number] = tuple(state.values())

    def run_until(self, addresses: Sequence[int], timeout: float) -> Vcpu | None:
        if self.left == 0:
            raise Killed
        self.run_threads(addresses)
        return Vcpu(0, "1.1")

    def run_threads(self, addresses: Sequence[int]) -> None:
        for _ in range(4000):
            pc = self.threads[0][self.cpu.pc]
            if CODE <= pc < DATA or ALLOCATE <= pc < FLAGS:
                if self.ran == self.calls:
                    self.left = 0
                    raise Killed
                self.ran += 1
            self.threads[0] = self.run_one(self.threads[0])
            if self.threads[0][self.cpu.pc] in addresses:
                return
        raise AssertionError("the thread does not come there")


@dataclass(frozen=True)
class Window(Pages):
    """See guest.linux.arch.base.Window."""

    machine: FakeMachine
    calling = CALLING
    vcpus = cast(Any, SimpleNamespace(
        entry=lambda kernel, at: at, may_sleep=lambda machine, kernel, vcpu: True, writing=SimpleNamespace(pc="rip")
    ))
    orders: Sequence[int] = (ORDER + 1, ORDER)
    whole: int = ORDER + 1
    flushes: str = "flush_tlb_all"

    @property
    def kernel(self) -> Kernel:  # type: ignore[override]
        return kernel(self.machine)

    def size(self, order: int) -> int:
        return SIZE

    def places(self, low: int, high: int) -> Sequence[int]:
        return (PLACE,)

    def is_place(self, place: int, order: int) -> bool:
        return place == PLACE

    def table(self) -> int | None:
        return TABLES

    def is_free(self, place: int) -> bool:
        return not any(self.machine.read(ENTRY, 8))

    def map(self, place: int, order: int, block: int) -> int:
        assert self.is_free(place) and order == ORDER
        self.machine.write_physical(ENTRY, block.to_bytes(8, "little"))
        return place

    def is_mapped(self, place: int, order: int, block: int) -> bool:
        held = int.from_bytes(self.machine.read(ENTRY, 8), "little")
        assert held in (0, block)
        return bool(held)

    def unmap(self, place: int) -> int:
        self.machine.write_physical(ENTRY, bytes(8))
        return place


class AtHome(Window):
    """Of a kernel whose own mapping of a block serves: its place in the journal alone tells whether it does."""

    def places(self, low: int, high: int) -> Sequence[int]:
        return (NOWHERE, NOWHERE)

    def is_place(self, place: int, order: int) -> bool:
        return place in (NOWHERE, PLACE)

    def table(self) -> int | None:
        return None

    def is_free(self, place: int) -> bool:
        return place == NOWHERE

    def map(self, place: int, order: int, block: int) -> int:
        assert place == NOWHERE and order == ORDER
        return block

    def is_mapped(self, place: int, order: int, block: int) -> bool:
        assert place in (NOWHERE, block)
        return place == block

    def unmap(self, place: int) -> int:
        return NOWHERE


def kernel(machine: FakeMachine) -> Kernel:
    functions = {"__get_free_pages": ALLOCATE, "free_pages": FREE, "flush_tlb_all": FLUSH, "ksys_read": MEETING}
    return fake_kernel.kernel(cast(Any, machine), {**functions, "gfpflag_names": FLAGS})


@dataclass
class LendingGuest(FakeGuest):
    """is_home: whether the kernel's own mapping of a block serves."""

    is_home: bool = False

    @property
    def block(self) -> int:
        return PLACE if self.is_home else AT

    def __post_init__(self) -> None:
        super().__post_init__()
        self.machine.__class__ = Machine
        linux = self._linux()
        arena = LinuxArena(linux, lambda: self.settings)
        arena._can_change = lambda table: True  # type: ignore[method-assign]
        self.arena_source = arena

    def _linux(self) -> LinuxGuest:
        linux = super()._linux()
        linux.kernel = kernel(self.machine)
        window = AtHome(self.machine, flushes="") if self.is_home else Window(self.machine)
        cast(Any, linux.arch).window = lambda machine, kernel: window
        linux.forget = lambda: self._passed()  # type: ignore[method-assign]
        return linux

    def _passed(self) -> None:
        self.steps += 1

    def copy(self) -> LendingGuest:
        return LendingGuest(
            self.bodies, self.isa, None, self.traps, self.names, self.settings,
            bytes(self.machine.memory), tuple(self.machine.threads), is_home=self.is_home,
        )  # fmt: skip

    def word(self, at: int) -> int:
        return int.from_bytes(self.machine.read(at, 8), "little")


def lending(is_home: bool) -> LendingGuest:
    plain = program()
    parts = (Body("allocate", ALLOCATE, ALLOCATES), Body("free", FREE, FREES), Body("flush", FLUSH, FLUSHES))
    guest = LendingGuest((*plain.bodies, *parts), traps=plain.traps, is_home=is_home)
    memory = guest.machine.memory
    memory[BLOCK - START : BLOCK - START + 8] = guest.block.to_bytes(8, "little")
    table, text = b"", FLAGS + 0x60
    for name, mask in NAMES:
        table += mask.to_bytes(8, "little") + text.to_bytes(8, "little")
        memory[text - START : text - START + len(name)] = name.encode()
        text += 0x20
    memory[FLAGS - START : FLAGS - START + len(table)] = table
    guest.start_threads(LOOP)
    return guest


EITHER = pytest.mark.parametrize("is_home", [False, True])
TABLE = Spec(f"*{PLAIN:#x}", actions=("count by $rax",))


def filled(guest: LendingGuest) -> Session:
    """A session with probes that leave less data than one more needs."""
    session = guest.session()
    guest.settings = replace(guest.settings, table_keys=4096)
    while not guest.word(GIVEN):
        left = session.optimizer.find_arena().data.largest
        if left < 1 << 17:
            guest.settings = replace(guest.settings, table_keys=512)
        if left < 1 << 14:
            return session
        session.add(TABLE)
    raise AssertionError("the arena is larger than it seemed")


def end(guest: LendingGuest, session: Session, text: bytes) -> None:
    """All goes, and the guest is as it was."""
    session.delete()
    for number in range(len(guest.machine.threads)):
        guest.run_to(number, MEETING)
    session.commit(0)
    assert session.optimizer.release_arena()
    assert guest.word(GIVEN) == guest.word(TAKEN) and guest.word(BLOCK) == guest.block and not guest.word(ENTRY)
    assert set(guest.machine.read(CODE, DATA - CODE)) == {FILL}
    assert guest.machine.read(START, 0x8000) == text


@EITHER
def test_memory_is_lent_when_there_is_none_and_given_back(is_home: bool) -> None:
    guest = lending(is_home)
    text = guest.machine.read(START, 0x8000)
    session = filled(guest)
    session.add(TABLE)
    assert (guest.word(GIVEN), guest.word(TAKEN), guest.word(ENTRY)) == (1, 0, 0 if is_home else AT)
    (*_, last) = session.registry.probes()
    assert last.counter is not None and PLACE <= last.counter.address < PLACE + SIZE
    assert session.check() == ()
    for number in range(2):
        guest.run_to(number, MEETING)
    flushed = guest.word(FLUSHED)
    end(guest, session, text)
    assert guest.word(TAKEN) == 1 and guest.word(FLUSHED) == flushed + (not is_home)


def test_it_is_not_lent_where_a_setting_refuses_it() -> None:
    guest = lending(is_home=False)
    session = filled(guest)
    guest.settings = replace(guest.settings, max_memory=0)
    with pytest.raises(OptprobeError, match="the memory for detours is full"):
        session.add(TABLE)
    assert not guest.word(GIVEN)
    assert session.check() == ()


@EITHER
def test_what_the_kernel_does_not_have_is_refused(is_home: bool) -> None:
    guest = lending(is_home)
    text = guest.machine.read(START, 0x8000)
    session = filled(guest)
    guest.machine.memory[BLOCK - START : BLOCK - START + 8] = bytes(8)
    with pytest.raises(OptprobeError, match="its kernel lends no more: its kernel has no"):
        session.add(TABLE)
    assert session.check() == ()
    guest.machine.memory[BLOCK - START : BLOCK - START + 8] = guest.block.to_bytes(8, "little")
    session.add(TABLE)
    end(guest, session, text)


def test_what_enable_finds_no_room_for_is_asked_for_as_by_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the probe was disabled its detour's room, and its counter's, has gone to others."""
    guest = lending(is_home=True)
    session = guest.session()
    guest.settings = replace(guest.settings, optimization=False, trap=False)
    session.add(Spec(f"*{PLAIN:#x}"))
    session.disable()
    data = session.optimizer.take_arena().data
    others = data.allocate(data.largest, 0, 1 << 64, PLAIN)
    asked: list[int] = []

    def lend(optimizer: Optimizer, lack: Lack, more: int) -> None:
        asked.append(lack.size)
        data.free(others)

    monkeypatch.setattr(Optimizer, "lend", lend)
    guest.settings = replace(guest.settings, optimization=True)
    session.enable()
    assert [view.tier for view in session.views()] == ["optimized"] and asked == [8]
    assert session.check() == ()


def test_a_probe_is_enabled_where_the_kernel_lends_no_more() -> None:
    session = lacking(lending(is_home=True))
    session.enable()
    assert [(view.tier, view.enabled) for view in session.views()] == [("emulated", True)]


def lacking(guest: LendingGuest) -> Session:
    """A session with a disabled probe, for which there is too little memory when it is enabled."""
    session = guest.session()
    guest.settings = replace(guest.settings, optimization=False, trap=False)
    session.add(Spec(f"*{PLAIN:#x}"))
    session.disable()
    data = session.optimizer.take_arena().data
    data.allocate(data.largest, 0, 1 << 64, PLAIN)
    guest.settings = replace(guest.settings, optimization=True)
    return session


def test_a_gdb_may_be_killed_while_enable_has_memory_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one finds the probes as they are: enabled."""
    guest, left = lending(is_home=True), list[LendingGuest]()
    session = lacking(guest)
    monkeypatch.setattr(Optimizer, "lend", lambda optimizer, lack, more: left.append(guest.copy()))
    session.enable()
    following = left[0].session()
    assert adopt.recover(following).lost == ()
    assert [view.enabled for view in following.views()] == [True]


def test_a_ctrl_c_while_enable_has_memory_lent_skips_nothing_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    guest, done = lending(is_home=True), list[str]()
    session = lacking(guest)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Optimizer, "lend", interrupted)
    for what, name in ((Session, "watch_traces"), (ModuleTracker, "update_load_hook"), (Optimizer, "write_records")):
        monkeypatch.setattr(what, name, lambda *_, name=name: done.append(name))
    with pytest.raises(KeyboardInterrupt):
        session.enable()
    assert [view.enabled for view in session.views()] == [True]
    assert done == ["write_records", "write_records", "update_load_hook", "watch_traces"]


def actions(guest: LendingGuest, session: Session) -> None:
    session.add(TABLE)
    session.delete()
    for number in range(len(guest.machine.threads)):
        guest.run_to(number, MEETING)
    session.optimizer.reclaim()
    assert session.optimizer.release_arena()


@EITHER
def test_a_gdb_may_be_killed_behind_any_write_while_memory_is_lent(is_home: bool) -> None:
    whole = lending(is_home)
    session = filled(whole)
    whole.machine.writes.clear()
    actions(whole, session)
    assert whole.word(GIVEN) == whole.word(TAKEN) == 1
    for number in some(range(0, len(whole.machine.writes) + 1, 1 if FULL else 3)):
        check_killed(is_home, "left", number)


@EITHER
def test_a_gdb_may_be_killed_behind_any_instruction_of_a_call(is_home: bool) -> None:
    """The thread is in the code of the call when the next GDB comes, and runs on."""
    whole = lending(is_home)
    session = filled(whole)
    before = cast(Machine, whole.machine).ran
    actions(whole, session)
    for number in range(before, cast(Machine, whole.machine).ran, 1 if FULL else 31):
        check_killed(is_home, "calls", number)


def check_killed(is_home: bool, how: str, number: int) -> None:
    """Raises AssertionError where something is lost of a guest in which GDB was killed."""
    for removes in (False, True):
        guest = lending(is_home)
        text = guest.machine.read(START, 0x8000)
        session = filled(guest)
        setattr(guest.machine, how, number)
        with suppress(Killed):
            actions(guest, session)
        left = guest.copy()
        try:
            check_taken_over(left, text, removes)
        except BaseException as error:
            error.add_note(f"{how} {number}, then {'removed' if removes else 'taken over'}")
            raise


def check_taken_over(guest: LendingGuest, text: bytes, removes: bool) -> None:
    session = guest.session()
    try:
        if removes:
            adopt.remove(session, 0)
        else:
            assert adopt.recover(session).lost == ()
            assert session.check() == ()
    except OptprobeError as none:
        assert "no probes of an earlier GDB" in none.message or "in use" in none.message or "still" in none.message
    for number in range(len(guest.machine.threads)):
        guest.run_to(number, MEETING)
    session.optimizer.on_stop()
    try:
        session.add(Spec(f"*{PLAIN:#x}"))
    except OptprobeError:
        adopt.recover(session)
    assert session.check() == ()
    end(guest, session, text)
