"""The events of system calls: their functions, and fields that have the values and the types of the call."""

from __future__ import annotations

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le.syscalls import SYSCALLS as PPC64LE
from gdb_optprobe.guest.linux.arch.x86_64.syscalls import SYSCALLS as X86_64
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.guest.linux.syscall_events import METADATA, SyscallAbi, SyscallEvents, of_text
from gdb_optprobe.handlers.ctype import CHAR, INT, UNSIGNED_INT, UNSIGNED_LONG, Pointer, Void
from gdb_optprobe.handlers.interpreter import Hit, evaluate
from gdb_optprobe.handlers.parser import parse_expression
from gdb_optprobe.handlers.scope import Fields, Rvalue
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.handlers.types import Typer, member_names
from tests.guest.linux import fake_kernel
from tests.handlers.world import World

TEXTS, TABLE, META, REGS, FUNCTION = 0x1000, 0x2000, 0x3000, 0x5000, 0xFFFF_FFFF_8100_9000
ENTER, LEFT = EventName("syscalls", "sys_enter_read"), EventName("syscalls", "sys_exit_read")
RAW = EventName("raw_syscalls", "sys_enter")
ARGUMENTS = (("int", "dfd"), ("const char *", "path"), ("unsigned int", "mode"))
WORDS = (0xFFFF_FFFF_FFFF_FF9C - (1 << 63), 0x7000, 0xFFFF_FFFF_0000_01A4)


def events(
    abi: SyscallAbi, symbol: str = "d___syscall_meta__read", pointers: int = 0, **names: int
) -> SyscallEvents:
    """A kernel that has the call `read`, with ARGUMENTS. pointers: what a newer kernel keeps above their number."""
    memory = fake_kernel.Pages()
    at = TEXTS

    def text(written: str) -> int:
        nonlocal at
        memory.put(at, written.encode() + b"\0")
        at += len(written) + 1
        return at - len(written) - 1

    memory.put(TEXTS, bytes(4 * 4096))
    types, called = (range(META + at, META + at + 24, 8) for at in (0x100, 0x200))
    for index, (type_, argument) in enumerate(ARGUMENTS):
        memory.put_words(types[index], text(type_))
        memory.put_words(called[index], text(argument))
    memory.put(META, METADATA.pack(text("sys_read"), 63, pointers | len(ARGUMENTS), types[0], called[0]))
    memory.put_words(TABLE, TABLE + 8, 0, META)
    found = {abi.prefix + "read": FUNCTION, abi.prefix + "off_notify": FUNCTION + 64}
    found |= {symbol: META if symbol.endswith("read") else TABLE}
    kernel = fake_kernel.kernel(memory, found | names)
    return SyscallEvents(kernel, abi)


def fields(of: SyscallEvents, event: EventName = ENTER, returned: bool = False) -> Fields:
    return of.fields(event, FUNCTION, World(), "rax", returned)


def run(meaning: object, **registers: int) -> int:
    """The value of a field, with WORDS where x86-64 and ppc64le with pt_regs have the arguments."""
    assert isinstance(meaning, Rvalue)
    regs = bytearray(256)
    for offset, index in ((112, 0), (104, 1), (96, 2), (24, 0), (32, 1), (40, 2)):
        regs[offset : offset + 8] = (WORDS[index] % (1 << 64)).to_bytes(8, "little")
    return evaluate(meaning.expr, Hit(registers, lambda at, size: bytes(regs[at - REGS : at - REGS + size]), 0))


@pytest.mark.parametrize(("abi", "register"), [(X86_64, "rdi"), (PPC64LE, "r3")])
@pytest.mark.parametrize("symbol", ["d___syscall_meta__read", "d_syscalls_metadata"])
def test_arguments_have_names_types_and_the_values_of_saved_registers(
    abi: SyscallAbi, register: str, symbol: str
) -> None:
    """By the call's own variable, or by the table of all where there are no symbols of data."""
    found = fields(events(abi, symbol))
    assert found.names == ("__syscall_nr", "dfd", "path", "mode")
    assert fields(events(abi, symbol, pointers=0x2_0080)).names == found.names
    values = [run(found.lookup(name), **{register: REGS}) for name in found.names]
    assert values == [63, 0xFFFF_FFFF_FFFF_FF9C, WORDS[1], 0x1A4], "an int has a sign, an unsigned int has 32 bits"
    types = [found.lookup(name).type for name in ("dfd", "path", "mode")]  # type: ignore[union-attr]
    assert types == [INT, Pointer(CHAR), UNSIGNED_INT]
    assert found.lookup("fd") is None


def test_arguments_in_registers_of_a_kernel_without_wrappers() -> None:
    found = fields(events(PPC64LE, __se_sys_read=FUNCTION))
    assert run(found.lookup("dfd"), r3=5) == 5
    assert run(found.lookup("mode"), r5=(1 << 40) + 7) == 7


def test_a_return_has_its_result_and_nothing_of_the_entry() -> None:
    found = fields(events(X86_64), LEFT, returned=True)
    assert found.names == ("ret",)
    assert run(found.lookup("ret"), rax=(1 << 64) - 9) == (1 << 64) - 9


def test_the_function_of_all_calls_has_number_and_arguments() -> None:
    of = events(X86_64, x64_sys_call=0xA000)
    assert of.find(RAW) == {0xA000}
    found = fields(of, RAW)
    assert run(found.lookup("id"), rsi=0xFFFF_FFFF_0000_0003) == 3
    assert run(found.lookup("args[1]"), rdi=REGS) == WORDS[1]


def test_kernels_without_such_a_function_say_so() -> None:
    for abi in (X86_64, PPC64LE):
        with pytest.raises(OptprobeError, match="no function that calls all system calls"):
            events(abi).find(RAW)


def test_a_glob_finds_the_functions_of_calls_alone() -> None:
    for abi in (X86_64, PPC64LE):
        of = events(abi, "d_syscalls_metadata")
        assert of.find(EventName("syscalls", "sys_enter_*")) == {FUNCTION}, "off_notify is no call"
        assert of.named(EventName("syscalls", "sys_exit_*"), FUNCTION) == LEFT


@pytest.mark.parametrize("event", ["sys_enter_reed", "sys_enter", "open"])
def test_an_event_that_is_not_there(event: str) -> None:
    with pytest.raises(OptprobeError):
        events(X86_64).find(EventName("syscalls", event))


def test_metadata_that_is_of_another_call_is_not_used() -> None:
    of = events(X86_64)
    of.kernel.memory.put(META + 8, (99).to_bytes(4, "little"))  # type: ignore[attr-defined]
    of.kernel.memory.put_words(META, TEXTS)  # type: ignore[attr-defined]
    with pytest.raises(OptprobeError, match="have no names"):
        fields(of)


def test_types_as_the_kernel_writes_them() -> None:
    assert of_text("const char __user *", World()) == Pointer(CHAR)
    assert of_text("char **", World()) == Pointer(Pointer(CHAR))
    assert of_text("struct unheard_of *", World()) == Pointer(Void())
    assert of_text("unheard_of_t", World()) == UNSIGNED_LONG
    assert of_text("long unsigned int", World()) == UNSIGNED_LONG


class Args(World):
    """A scope with an event's fields."""

    def name(self, name: str):  # type: ignore[no-untyped-def]
        return fields(events(X86_64)) if name == "args" else super().name(name)


def typed(text: str) -> object:
    return Typer(Args()).meaning(parse_expression(Fragment.whole(text), Args().is_type))


def test_fields_are_members_of_args_in_expressions() -> None:
    assert typed("args->dfd") == typed("args.dfd") == fields(events(X86_64)).lookup("dfd")
    assert run(typed("args->dfd == -100"), rdi=REGS) == 1
    assert list(member_names(Fragment.whole("args"), Args())) == ["__syscall_nr", "dfd", "path", "mode"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("args", "'args' is no value", "args->__syscall_nr"),
        ("args + 1", "'args' is no value", ""),
        ("args->fd", "the event has no field 'fd'", "did you mean 'dfd'"),
        ("args->dfd[0]", "is no array", ""),
    ],
)
def test_what_is_no_field_is_told(text: str, message: str, hint: str) -> None:
    with pytest.raises(OptprobeError, match=message) as raised:
        typed(text)
    assert hint in raised.value.hint
