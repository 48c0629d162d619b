"""The judge itself: it sees each way in which a copy can be wrong."""

from __future__ import annotations

from gdb_optprobe.isa.base import Dead, Insn, Relocated
from gdb_optprobe.isa.x86_64 import X86_64
from tests.isa.x86_64.differential import STACK, Probed, compare, spoil
from tests.isa.x86_64.windows import KernelCode, survey

HERE = 0xFFFF_FFFF_8100_1230
NEAR = 0xFFFF_FFFF_8300_0040


def code(data: str) -> list[Insn]:
    return X86_64.decode(bytes.fromhex(data), HERE)


def test_the_judge_sees_a_wrong_copy() -> None:
    window = code("48 89 d8 e2 f0")  # mov %rbx, %rax; loop -16
    right = X86_64.relocate(window, NEAR)
    for wrong in (right.data.replace(b"\x48\x89\xd8", b"\x48\x89\xd0"), right.data.replace(b"\xe2\x02", b"\xe3\x02")):
        copy = Relocated(NEAR, wrong, right.origins)
        assert compare(window, copy, {"rsp": STACK, "rcx": 3, "rbx": 1, "rdx": 2, "eflags": 2})


def test_the_judge_sees_a_wrong_count_and_what_is_not_dead() -> None:
    window = code("48 89 d8 48 01 c8 c3")  # mov %rbx, %rax; add %rcx, %rax; ret
    counter = {window[1].address: NEAR + 0x8000}
    probed = Probed({insn.address: insn for insn in window}, counter)
    state = {"rsp": STACK, "rcx": 3, "rbx": 1, "eflags": 2}
    right = X86_64.relocate(window, NEAR, probed.before())
    assert not compare(window, right, state, probed)
    assert "counted 0" in compare(window, X86_64.relocate(window, NEAR), state, probed)
    for dead in (Dead(registers=frozenset({"rcx"})), Dead(registers=frozenset({"rax"}))):
        wrong = X86_64.relocate(window, NEAR, {window[1].address: lambda at, dead=dead: spoil(dead)})
        assert "rax" in compare(window, wrong, state, probed)
    flags = X86_64.relocate(window, NEAR, {window[2].address: lambda at: spoil(Dead(flags=True))})
    assert "eflags" in compare(window, flags, state, Probed(probed.code))


def test_survey_is_reproducible() -> None:
    function = bytes.fromhex("4889d848ff05001000007403ff5424084801c30f44c17402ffc0c3cccccccccc")
    base = HERE & ~0xFFF
    starts = range(base, base + 64 * len(function), len(function))
    kernel = KernelCode(base, function * 64 + b"\xcc" * 0x20000, starts)
    first, second = (survey(kernel, 10, 1) for _ in range(2))
    assert first == second
    assert first.executed.total() >= 10 and not first.differences
