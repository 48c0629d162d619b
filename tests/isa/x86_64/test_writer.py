"""Code of our own, as it runs and as it is read back."""

from __future__ import annotations

import sys

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.isa.base import Dead, OutOfReach
from gdb_optprobe.isa.x86_64 import X86_64, abi, templates, writer

from .differential import STACK, contents, execute

HERE = 0xFFFF_FFFF_8100_1000
FLAGS_DEAD = Dead(flags=True)


def text(code: bytes, at: int = HERE) -> list[str]:
    return [insn.text for insn in X86_64.decode(code, at)]


def test_count_where_flags_are_dead_is_one_instruction() -> None:
    assert text(X86_64.count(HERE + 0x1008, HERE, FLAGS_DEAD)) == ["lock incq 0x1000(%rip)"]


def test_count_where_flags_live_keeps_them() -> None:
    assert text(X86_64.count(HERE + 0x1009, HERE, Dead())) == ["pushfq", "lock incq 0x1000(%rip)", "popfq"]


def test_count_names_absolutely_what_is_out_of_relative_reach() -> None:
    far = 0xFFFF_FFFF_0000_0000
    code = X86_64.count(HERE, far, FLAGS_DEAD)
    assert code.hex() == "f048ff042500100081" and len(X86_64.decode(code, far)) == 1


def test_count_out_of_reach() -> None:
    with pytest.raises(OutOfReach):
        X86_64.count(0x5555_0000_0000, HERE, FLAGS_DEAD)


@pytest.mark.parametrize("dead", [Dead(), FLAGS_DEAD])
@pytest.mark.parametrize("flags", [0x202, 0x246, 0x202 | abi.ARITHMETIC_FLAGS])
def test_count_adds_one_and_changes_nothing_else(dead: Dead, flags: int) -> None:
    counter = HERE + 0x3FF8
    code = X86_64.count(counter, HERE, dead)
    state = {"rsp": STACK, "eflags": flags, "rax": 7}
    after = execute({HERE: code}, HERE, [(HERE, HERE + len(code))], {}, state)
    page = counter & ~0xFFF
    before = int.from_bytes(contents(page)[-8:], "little")
    assert int.from_bytes(after.memory[page][-8:], "little") == before + 1
    assert (after.registers["rsp"], after.registers["rax"]) == (STACK, 7)
    if not dead.flags:
        assert after.registers["eflags"] == flags


def test_branch_reaches_two_gigabytes_and_no_more() -> None:
    assert X86_64.branch(0x1000, 0x1005) == b"\xe9\0\0\0\0"
    source = 0x1_0000_0000
    for target in (source + 5 + (1 << 31) - 1, source + 5 - (1 << 31)):
        assert X86_64.decode(X86_64.branch(source, target), source)[0].target == target
    for target in (source + 5 + (1 << 31), source + 4 - (1 << 31)):
        with pytest.raises(OutOfReach):
            X86_64.branch(source, target)


@pytest.mark.parametrize(
    "number", [0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF_8000_0000, 0xFFFF_FFFF_7FFF_FFFF, 0x1122_3344_5566_7788]
)
def test_push_and_store_of_any_number(number: int) -> None:
    for code, offset in ((writer.push(number), 0), (writer.push(1) + writer.store(number, 8), 8)):
        after = execute({HERE: code}, HERE, [(HERE, HERE + len(code))], {}, {"rsp": STACK, "eflags": 0x2D7})
        top = after.registers["rsp"]
        assert top == STACK - 8 and after.registers["eflags"] == 0x2D7
        at = top + offset
        memory = after.memory.get(at & ~0xFFF) or contents(at & ~0xFFF)
        assert int.from_bytes(memory[at & 0xFFF : (at & 0xFFF) + 8], "little") == number


def test_keystone_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    templates.templates.cache_clear()
    monkeypatch.setitem(sys.modules, "keystone", None)
    with pytest.raises(OptprobeError) as error:
        X86_64.count(HERE, HERE, FLAGS_DEAD)
    assert "keystone" in str(error.value) and "\n" not in str(error.value)
    templates.templates.cache_clear()


def test_keystone_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    templates.templates.cache_clear()
    wrong = bytes.fromhex("f048ff0d44332211 9c 9d".replace(" ", ""))
    monkeypatch.setattr(templates, "assemble", lambda source, arch, mode: wrong)
    with pytest.raises(OptprobeError):
        templates.templates()
    templates.templates.cache_clear()
