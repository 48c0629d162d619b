"""Packets of ours and GDB's own, and registers, by a GDB 13 and a GDB 16: tests/debugger/fake_gdb.py."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from gdb_optprobe.errors import NeedsStop, OptprobeError, Unreadable
from gdb_optprobe.guest.machine import Vcpu, physically
from gdb_optprobe.guest.memory import KernelMemory
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.x86_64 import X86_64
from tests.debugger.fake_gdb import Flags, Gdb

VCPUS = 4
TEXT = 0xFFFF_FFFF_8100_0000
HEAP = 0x5555_5555_4000


def vcpu(number: int) -> Vcpu:
    return Vcpu(number, f"1.{number + 1}")


@pytest.fixture(params=[False, True], ids=["gdb-13", "gdb-16"])
def gdb(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gdb]:
    fake = Gdb(VCPUS, later=request.param)
    fake.stub.kernel = dict.fromkeys(range(TEXT, TEXT + 64), 0x90)
    for number, memory in enumerate(fake.stub.user):
        memory.update(dict.fromkeys(range(HEAP, HEAP + 0x3000), number))
    before = {name for name in sys.modules if name.startswith("gdb_optprobe.debugger.")}
    monkeypatch.setitem(sys.modules, "gdb", fake)
    monkeypatch.setitem(sys.modules, "gdb.events", fake)
    yield fake
    for name in {name for name in sys.modules if name.startswith("gdb_optprobe.debugger.")} - before:
        del sys.modules[name]


@pytest.fixture
def module(gdb: Gdb) -> Any:
    return importlib.import_module("gdb_optprobe.debugger.machine")


@pytest.fixture
def machine(gdb: Gdb, module: Any) -> Any:
    guard = importlib.import_module("gdb_optprobe.debugger.guardian_process")
    return module.GdbMachine(gdb.connection, guard.GuardianProcess(), X86_64)


class Breakpoint:
    """An internal one. fails: what its deletion raises."""

    all: ClassVar[list[Breakpoint]] = []
    fails: ClassVar[Exception | None] = None

    def __init__(self, place: str, internal: bool) -> None:
        assert internal
        if place == "*0x0":
            raise ValueError(place)
        self.place = place
        self.all.append(self)

    def delete(self) -> None:
        failure, Breakpoint.fails = self.fails, None
        if failure is not None:
            raise failure
        self.all.remove(self)


@pytest.mark.parametrize("ends", ["stopped", "gone", "running"])
@pytest.mark.parametrize("fails", [False, True])
def test_no_breakpoint_stays_in_gdb_for_another_guest(
    gdb: Gdb, module: Any, machine: Any, monkeypatch: pytest.MonkeyPatch, ends: str, fails: bool
) -> None:
    """GDB would insert it in the next one, which stops there, or cannot be resumed. Where the guest runs, GDB ends."""
    monkeypatch.setattr(gdb, "Breakpoint", Breakpoint, raising=False)
    monkeypatch.setattr(Breakpoint, "all", [])
    monkeypatch.setattr(Breakpoint, "fails", RuntimeError("no longer valid") if fails else None)
    thread = gdb.selected_thread()
    thread.is_running = lambda: ends == "running"

    def run(timeout: float, heeds: bool) -> None:
        assert [each.place for each in Breakpoint.all] == ["*0x10", "*0x20"]
        monkeypatch.setattr(gdb, "selected_thread", lambda: None if ends == "gone" else thread)
        raise gdb.error("Remote connection closed")

    monkeypatch.setattr(module, "run_for", run)
    with pytest.raises(gdb.error, match="Remote connection closed"):
        machine.run_until([0x10, 0x20], 1.0)
    assert len(Breakpoint.all) == (2 if ends == "running" else int(fails))


def test_a_breakpoint_that_cannot_be_set_leaves_none(gdb: Gdb, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gdb, "Breakpoint", Breakpoint, raising=False)
    monkeypatch.setattr(Breakpoint, "all", [])
    gdb.selected_thread().is_running = lambda: False
    with pytest.raises(ValueError, match="0x0"):
        machine.run_until([0x10, 0], 1.0)
    assert Breakpoint.all == []


@pytest.mark.parametrize("number", range(VCPUS))
@pytest.mark.parametrize("selected", range(VCPUS))
@pytest.mark.parametrize("before", range(VCPUS))
def test_a_redirect_moves_the_vcpu_it_is_for(gdb: Gdb, machine: Any, number: int, selected: int, before: int) -> None:
    """Whichever one GDB was at before, and whatever it read."""
    gdb.selected_inferior().threads()[before].switch()
    gdb.newest_frame().read_register("rip")
    gdb.selected_inferior().threads()[selected].switch()
    machine.read(TEXT, 4)
    pcs = list(gdb.stub.pcs)
    machine.redirect(vcpu(number), "rip", TEXT + 16)
    assert gdb.stub.pcs == [TEXT + 16 if each == number else pc for each, pc in enumerate(pcs)]
    assert gdb.agrees and gdb.selected_thread().num == selected + 1


@pytest.mark.parametrize("number", range(VCPUS))
def test_no_packet_of_ours_has_gdb_read_another_vcpu(gdb: Gdb, machine: Any, number: int) -> None:
    """All of GDB's own registers are right behind each."""
    everyone = gdb.selected_inferior().threads()
    for act in (
        lambda: machine.redirect(vcpu(number), "rip", TEXT + 8),
        lambda: machine.step_out("rip", [(TEXT + 8, TEXT + 10)]),
        lambda: machine.write_selected(HEAP, b"abc"),
        lambda: machine.write(HEAP, b"abc"),
        lambda: machine.stops_at(TEXT),
    ):
        for thread in everyone:
            thread.switch()
            act()
            assert gdb.agrees
            gdb.execute("maint flush register-cache", to_string=True)
            gdb.newest_frame().read_register("rip")
    for thread in everyone:
        thread.switch()
        assert gdb.newest_frame().read_register("rip") == gdb.stub.pcs[thread.num - 1]


@pytest.mark.parametrize("selected", range(VCPUS))
@pytest.mark.parametrize("vcpus", [1, VCPUS])
def test_registers_are_the_innermost_frame_s_whose_caller_is_not_looked_at(
    gdb: Gdb, machine: Any, vcpus: int, selected: int
) -> None:
    """GDB may take any word of the stack for the caller's address, and reads there: a device's, which may end QEMU."""
    everyone = gdb.selected_inferior().threads()
    del everyone[vcpus:]
    me = everyone[min(selected, vcpus - 1)]
    me.switch()
    for each in range(vcpus):
        assert machine.registers(vcpu(each), ("rip",)) == {"rip": gdb.stub.pcs[each]}
    assert gdb.unwound == 0 and not gdb.outer and gdb.selected_thread() is me
    assert not gdb.executed, "a command would run those of a breakpoint that has stopped the guest"
    mine = machine.selected()
    for gdb.same_stack in (False, True):  # a call may leave the stack as it was
        gdb.outer = True
        assert machine.registers(mine, ("rip",)) == {"rip": gdb.stub.pcs[mine.number]}
        assert gdb.outer, "the user's frame is selected again"
    with pytest.raises(LookupError):
        machine.of_each_vcpu("k_gs_base")


def test_every_vcpu_is_stepped_out_by_itself(gdb: Gdb, machine: Any) -> None:
    gdb.stub.pcs = [TEXT + 3, TEXT + 9, TEXT + 2, TEXT + 1]
    machine.step_out("rip", [(TEXT, TEXT + 4)])
    assert gdb.stub.pcs == [TEXT + 4, TEXT + 9, TEXT + 4, TEXT + 4]
    assert gdb.agrees and gdb.selected_thread().num == 1


@pytest.mark.parametrize("number", range(VCPUS))
def test_a_users_memory_is_the_selected_vcpus(gdb: Gdb, machine: Any, number: int) -> None:
    machine.read_virtual(TEXT, 8)
    gdb.selected_inferior().threads()[number].switch()
    for read in (machine.read, machine.read_virtual, machine.read_selected):
        assert read(HEAP + 0xFFF, 0x1002) == bytes([number] * 0x1002)
    machine.write_virtual(HEAP + 8, b"\xff\0")
    assert [memory[HEAP + 8] for memory in gdb.stub.user] == [0xFF if each == number else each for each in range(VCPUS)]
    with pytest.raises(Unreadable):
        machine.read_selected(HEAP + 0x2FFF, 2)


@pytest.mark.parametrize("number", range(VCPUS))
def test_a_kernel_that_the_selected_vcpu_sees_is_read_whoever_else_does_not(
    gdb: Gdb, machine: Any, number: int
) -> None:
    """Page-table isolation: the first vCPU, which GDB 16 chooses, may be in user mode."""
    gdb.stub.in_user_mode = {*range(VCPUS)} - {number}
    gdb.selected_inferior().threads()[number].switch()
    for _ in range(2):
        assert machine.read_virtual(TEXT, 8) == b"\x90" * 8
    machine.write_virtual(TEXT, b"\xcc")
    assert gdb.stub.kernel[TEXT] == 0xCC
    gdb.stub.in_user_mode = {*range(VCPUS)}
    with pytest.raises(Unreadable):
        machine.read_virtual(TEXT, 8)
    with pytest.raises(Unreadable):
        machine.write_virtual(TEXT, b"\x90")


def test_without_a_connection_the_file_of_symbols_is_not_taken_for_the_guest(gdb: Gdb, machine: Any) -> None:
    """GDB reads code in that file where it has no process: the original, whatever the guest holds."""
    gdb.connection.is_valid = lambda: False
    for act in (machine.read_virtual, machine.read_selected):
        with pytest.raises(OptprobeError, match="closed"):
            act(TEXT, 8)
    with pytest.raises(OptprobeError, match="closed"):
        machine.write_virtual(TEXT, b"\xcc")
    assert gdb.stub.kernel[TEXT] == 0x90


def test_the_kernels_memory_costs_one_packet(gdb: Gdb, machine: Any) -> None:
    machine.read_virtual(TEXT, 1)
    before = len(gdb.stub.packets)
    assert machine.read_virtual(TEXT, 64) == b"\x90" * 64
    assert len(gdb.stub.packets) == before + 1


def test_several_registers_are_written_whatever_frame_gdb_selects_then(gdb: Gdb, machine: Any) -> None:
    machine.write_registers(vcpu(2), {"rip": TEXT, "r15": 0x1234, "rsp": 0x8000})
    assert gdb.stub.pcs[2] == TEXT and gdb.others == {"r15": 0x1234, "rsp": 0x8000}


@pytest.mark.parametrize("missing", ["r15", "rsp"])
def test_registers_are_written_all_or_none(gdb: Gdb, machine: Any, missing: str) -> None:
    gdb.unwritable = {missing}
    before = list(gdb.stub.pcs), dict(gdb.others)
    with pytest.raises(OptprobeError, match=f"registers cannot be written: cannot write {missing}"):
        machine.write_registers(vcpu(1), {"rip": TEXT, "r15": 0x1234, "rsp": 0x8000})
    assert (gdb.stub.pcs, gdb.others) == before


def test_a_register_that_does_not_keep_what_was_written(gdb: Gdb, module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gdb.selected_inferior().threads()[1].switch()
    written = gdb.parse_and_eval
    monkeypatch.setattr(gdb, "parse_and_eval", lambda line: None if "r15" in line else written(line))
    with pytest.raises(OptprobeError, match=r"\$r15 is 0xf after 0x1234 was written"):
        module.write_selected_registers({"rip": TEXT, "r15": 0x1234})
    assert gdb.stub.pcs[1] == 0x2000


def test_the_monitor_keeps_the_vcpu_that_the_user_chose(gdb: Gdb, module: Any) -> None:
    gdb.selected_inferior().threads()[1].switch()
    assert module.read_any_register("pid", PPC64LE.system) == 7
    assert gdb.monitor == ["monitor cpu 1", "monitor cpu 2"]


def test_a_part_of_a_register_has_a_name_of_its_own(gdb: Gdb, module: Any, machine: Any) -> None:
    gdb.others["cs"] = 0x33
    assert module.read_any_register("cpl", X86_64.system) == 3
    assert machine.registers(vcpu(0), ("cpl", "cs")) == {"cpl": 3, "cs": 0x33}


def test_flags_of_four_bytes_are_read_without_a_sign(gdb: Gdb, module: Any, machine: Any) -> None:
    """N of NZCV is the highest bit: what is written back must be what was read."""
    gdb.others["cpsr"] = Flags(0xA000_03C5 - (1 << 32))
    assert module.read_register("cpsr") == 0xA000_03C5
    assert machine.registers(vcpu(0), ("cpsr",)) == {"cpsr": 0xA000_03C5}


@pytest.mark.parametrize("address", [TEXT + (1 << 64), TEXT - (1 << 64), TEXT + (5 << 80)])
def test_an_address_of_more_than_64_bits_wraps_round(machine: Any, address: int) -> None:
    """A hostile guest's numbers are added up: to GDB such an address is an OverflowError."""
    assert machine.read(address, 4) == b"\x90" * 4 == machine.read_virtual(address, 4)
    for read in (machine.read, machine.read_virtual):
        with pytest.raises(Unreadable):
            read((1 << 64) - 2, 4)


def test_a_connection_that_has_closed_is_named(gdb: Gdb, machine: Any) -> None:
    gdb.connection.is_valid = lambda: False
    with pytest.raises(OptprobeError, match="the connection to the guest is closed"):
        machine.leave_physical_mode()


def test_while_the_guest_runs_nothing_is_asked_of_the_stub(gdb: Gdb, machine: Any, module: Any) -> None:
    """Data are read by what does not stop the guest; all else raises what no reader takes for an answer."""

    class Live:
        def read(self, address: int, size: int) -> bytes:
            return bytes([address & 0xFF]) * size

        def write(self, address: int, data: bytes) -> None:
            raise AssertionError("it is not asked")

    packets = len(gdb.stub.packets)
    asked = (
        lambda: machine.write(TEXT, b"1"),
        lambda: machine.read_selected(TEXT, 1),
        lambda: machine.read_virtual(TEXT, 1),
        lambda: machine.write_virtual(TEXT, b"1"),
        lambda: machine.read_physical(0, 1),
        lambda: machine.registers(vcpu(0), ["rip"]),
    )
    with machine.reading(Live()):
        assert machine.runs and machine.read(TEXT + 7, 3) == bytes([7] * 3)
        assert machine.read_many([(TEXT + 1, TEXT + 2)]) == [b"\1"]
        for ask in asked:
            with pytest.raises(NeedsStop):
                ask()
    assert len(gdb.stub.packets) == packets and not machine.runs
    assert machine.read(TEXT, 2) == b"\x90\x90"


@pytest.mark.parametrize("works", [True, False])
def test_much_physical_memory_is_read_at_once_where_that_is_possible(
    gdb: Gdb, machine: Any, module: Any, works: bool
) -> None:
    asked = list[tuple[int, int]]()

    def dump(pieces: Any) -> list[bytes] | None:
        asked.extend(pieces)
        return [bytes([7]) * size for _, size in pieces] if works else None

    machine.dump = dump
    for memory in gdb.stub.user:
        memory.update(dict.fromkeys(range(module.MUCH), 1))
    machine.connection = SimpleNamespace(is_valid=lambda: True, send_packet=sent(gdb))
    assert machine.read_physical(0, 8) == bytes([1] * 8) and not asked
    assert machine.read_physical(0, module.MUCH) == bytes([7 if works else 1]) * module.MUCH
    assert asked == [(0, module.MUCH)]


def sent(gdb: Gdb) -> Any:
    """Send packets to a stub that has the mode of physical memory."""
    return lambda packet: b"OK" if packet.startswith("Qqemu.PhyMemMode") else gdb.stub.ask(packet)


def test_some_physical_accesses_switch_the_mode_once(gdb: Gdb, machine: Any) -> None:
    modes, ask = list[str](), sent(gdb)

    def send(packet: str) -> bytes:
        modes.append(packet if packet.startswith("Qqemu.PhyMemMode") else packet[:1])
        answer: bytes = ask(packet)
        return answer

    on, off = "Qqemu.PhyMemMode:1", "Qqemu.PhyMemMode:0"
    machine.connection = SimpleNamespace(is_valid=lambda: True, send_packet=send)
    with physically(machine):
        machine.read_physical(HEAP, 8)
        machine.read_physical(HEAP + 8, 8)
    machine.read_physical(HEAP, 8)
    assert modes == [on, "m", "m", off, on, "m", off]
    modes.clear()
    with pytest.raises(ZeroDivisionError), physically(machine):
        raise ZeroDivisionError
    assert modes == [on, off]


def test_pages_that_are_walked_again_and_again_are_read_once(gdb: Gdb, machine: Any, module: Any) -> None:
    packets, ask = list[str](), sent(gdb)

    def send(packet: str) -> bytes:
        packets.append(packet)
        answer: bytes = ask(packet)
        return answer

    for memory in gdb.stub.user:
        memory.update(dict.fromkeys(range(2 * module.PAGE), 7))
    machine.connection = SimpleNamespace(is_valid=lambda: True, send_packet=send)
    with machine.reading_pages():
        for at in range(0, 2 * module.PAGE - 8, 8):
            assert machine.read_physical(at, 16) == bytes([7] * 16)
    of_page = -(-module.PAGE // module.CHUNK)
    assert len([one for one in packets if one.startswith("m")]) == 2 * of_page and len(packets) == 2 * of_page + 2
    machine.read_physical(0, 8)
    assert packets[-2] == "m0,8", "pages are kept for the block alone"
    with machine.reading_pages():
        machine.read_physical(0, 8)
        machine.write_physical(0, b"\x01")
        assert machine.read_physical(0, 2) == bytes([1, 7]), "what was written is read anew"


def test_an_image_is_of_a_guest_that_stands(machine: Any) -> None:
    class Held:
        def image(self, *asked: object) -> tuple[object, ...]:
            return asked

        def read(self, address: int, size: int) -> bytes:
            return bytes(size)

    assert machine.image(TEXT, TEXT + 8) is None, "what reads it by packets has none"
    machine.memory = Held()
    assert machine.image(TEXT, TEXT + 8, print) == (TEXT, TEXT + 8, print)
    with machine.reading(Held()):
        assert machine.image(TEXT, TEXT + 8) is None


def test_what_was_read_of_memory_is_dropped_where_it_is_written_by_its_physical_address(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    machine.memory = KernelMemory(machine, machine, lambda at: (at - TEXT, 64), lambda pieces: [bytes(16)])
    assert machine.image(TEXT, TEXT + 16, lambda: seen.append("changed")) is not None

    def packet(text: str) -> bytes:
        seen.append(text)
        return b"OK"

    monkeypatch.setattr(machine, "_packet", packet)
    machine.write_physical(8, b"\x90")
    assert seen[0] == "changed" and "M8,1:90" in seen
