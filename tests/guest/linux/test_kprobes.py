"""The guest's own kprobes in a small text: what stands beneath them is what is decoded, planned and landed on."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gdb_optprobe.detours.cfg import CfgCache
from gdb_optprobe.detours.planner import Plan, PlanRequest, plan
from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import kprobes
from gdb_optprobe.guest.linux.arch.x86_64.text import KernelText
from gdb_optprobe.guest.linux.kprobes import Kprobe, hashed, original
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.text import Overlay
from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.x86_64 import X86_64
from tests.detours.fakes import code
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT = 0xFFFFFFFF81000000
HOT, NEXT = TEXT + 0x10, TEXT + 0x60
SLOT = 0xFFFFFFFFC0401000
AGGREGATE = TEXT + 0x400
TABLE, PROBES = TEXT + 0x200000, TEXT + 0x201000
NAMES = {
    "_stext": TEXT,
    "hot": HOT,
    "next": NEXT,
    "far": TEXT + 0x100,
    "aggr_pre_handler": AGGREGATE,
    "register_kprobe": TEXT + 0x500,
    "_etext": TEXT + 0x1000,
    "d_kprobe_table": TABLE,
}
LAYOUT = {
    "kprobe.hlist": 0, "kprobe.addr": 0x28, "kprobe.pre_handler": 0x40, "kprobe.opcode": 0x50,
    "optimized_kprobe.optinsn.copied_insn": 0x90,
    "optimized_kprobe.optinsn.insn": 0x98,
    "optimized_kprobe.optinsn.size": 0xA0,
}
# Of vfs_read: what is behind +13 reads as other instructions where the kprobe's jump covers it up to +18.
LISTING = """41 57  push %r15
55  push %rbp
53  push %rbx
48 83 ec 68  sub $0x68, %rsp
65 48 8b 04 25 28 00 00 00  mov %gs:0x28, %rax
48 89 44 24 60  mov %rax, 0x60(%rsp)
5b  pop %rbx
5d  pop %rbp
c3  ret"""
PROBED, COVERED, BEHIND, LATER = HOT + 2, HOT + 4, HOT + 8, HOT + 17
JUMP = X86_64.branch(PROBED, SLOT)


@dataclass
class Guest:
    memory: Pages
    names: dict[str, int]
    layout: dict[str, int] | None
    overlay: Overlay | None = None

    def text(self) -> KernelText:
        plain = {name.removeprefix("d_"): at for name, at in self.names.items()}
        return KernelText(kernel(self.memory, plain, self.layout), X86_64, self.overlay)

    def plan(self, address: int) -> Plan:
        return plan(PlanRequest(address), CfgCache(X86_64, self.text()))

    def refusal(self, address: int) -> str:
        with pytest.raises(Refused) as refused:
            self.plan(address)
        return refused.value.reason.code

    def boundaries(self) -> list[int]:
        function = self.text().function(HOT)
        assert function is not None
        return [insn.address - HOT for insn in function.hot if insn.address < HOT + len(code(LISTING))]


def guest(written: bytes = b"", at: int = PROBED, optimizable: bool = True) -> Guest:
    """A kprobe of the guest's at `at`, whose first byte is `written` over."""
    memory = Pages()
    memory.put(TEXT, b"\xcc" * 0x1000)
    memory.put(HOT, code(LISTING))
    memory.put(TABLE, bytes(0x1000))
    memory.put(PROBES, bytes(0x1000))
    beneath = memory.read(at, 5)
    memory.put_words(TABLE + 8 * hashed(at), PROBES)
    memory.put_words(PROBES + 0x28, at)
    memory.put(PROBES + 0x50, beneath[:1])
    if optimizable:
        memory.put_words(PROBES + 0x40, AGGREGATE)
        memory.put(PROBES + 0x90, beneath[1:])
        memory.put_words(PROBES + 0x98, SLOT, 6)
    memory.put(at, written)
    return Guest(memory, NAMES, LAYOUT)


STATES = {
    "a breakpoint": b"\xcc",
    "a jump": JUMP,
    "a jump that is being written": b"\xcc" + JUMP[1:],
    "not armed": b"",
}


@pytest.mark.parametrize("written", STATES.values(), ids=STATES)
def test_boundaries_are_those_of_the_original_code(written: bytes) -> None:
    assert guest(written).boundaries() == guest().boundaries() == [0, 2, 3, 4, 8, 17, 22, 23, 24]


@pytest.mark.parametrize("written", STATES.values(), ids=STATES)
def test_what_is_behind_a_kprobe_is_planned_by_the_original_code(written: bytes) -> None:
    there = guest(written)
    behind = there.plan(BEHIND)
    assert behind.tier is Tier.OPTIMIZED and behind.original == code("65 48 8b 04 25  of 9 bytes")
    assert there.refusal(PROBED + 5) == "NOT_INSTRUCTION_BOUNDARY"
    assert there.plan(LATER).tier is Tier.OPTIMIZED


@pytest.mark.parametrize(
    ("state", "head", "covered"),
    [
        ("a breakpoint", "FOREIGN_BREAKPOINT", "FOREIGN_KPROBE"),
        ("a jump", "", "FOREIGN_JUMP"),
        ("a jump that is being written", "", "FOREIGN_JUMP"),
        ("not armed", "", "FOREIGN_KPROBE"),
    ],
)
def test_nothing_of_ours_stands_where_the_guest_may_write(state: str, head: str, covered: str) -> None:
    """What its jump covers does not run in place: not even a breakpoint there would count."""
    there = guest(STATES[state])
    assert [there.refusal(at) for at in (PROBED + 1, COVERED)] == [covered] * 2
    if head:
        assert there.refusal(PROBED) == head
    else:
        found = there.plan(PROBED)
        assert found.tier is Tier.BREAKPOINT, "it runs what stands there, whatever that is"
        assert found.reason is not None and found.reason.code == covered
        assert {why.code for _, why in found.refused if why.code != "TRAP_TIER_MISSING"} == {covered}
    before = there.plan(HOT)
    assert before.tier is not Tier.OPTIMIZED, "a branch there would reach into it"


def test_a_kprobe_that_is_never_optimized_covers_one_instruction() -> None:
    there = guest(b"\xcc", optimizable=False)
    assert there.refusal(PROBED) == "FOREIGN_BREAKPOINT"
    assert there.plan(PROBED + 1).tier is Tier.OPTIMIZED


def test_kprobes_that_cannot_be_listed_hide_what_is_behind_them() -> None:
    """Then a breakpoint or a jump to nowhere is all that tells of one."""
    for written in (b"\xcc", JUMP):
        for names, layout in ((NAMES, None), ({k: v for k, v in NAMES.items() if k != "d_kprobe_table"}, LAYOUT)):
            there = Guest(guest(written).memory, names, layout)
            assert [there.refusal(at) for at in (PROBED + 5, BEHIND, BEHIND + 1, LATER)] == ["FOREIGN_PATCH"] * 4
            with pytest.raises(Refused) as refused:
                there.plan(LATER)
            assert "BTF" in refused.value.reason.text or "kprobe_table" in refused.value.reason.text
            assert there.plan(HOT).tier is not Tier.OPTIMIZED
            assert there.text().originals.missing != ""


@pytest.mark.parametrize("ahead", ["e8 00 00 00 00  call", "ff d0  call *%rax", "eb 03  jmp +3", "c3  ret"])
def test_a_kprobe_behind_a_call_or_a_jump_hides_what_is_behind_it_where_none_can_be_listed(ahead: str) -> None:
    """The breakpoint could be a compiler's there: a trap within the instruction beneath it would panic the guest."""
    memory = Pages()
    memory.put(TEXT, b"\xcc" * 0x1000)
    head = code(ahead)
    memory.put(HOT, head + code("cc  int3\n8b 45 10  mov 0x10(%rbp), %eax\n31 c0  xor %eax, %eax\nc3  ret"))
    there = Guest(memory, NAMES, None)
    assert there.text().originals.missing
    inside = HOT + len(head) + 1
    assert [there.refusal(at) for at in (inside, inside + 3)] == ["FOREIGN_PATCH"] * 2


def test_a_patch_that_is_no_kprobe_hides_what_is_behind_it() -> None:
    for written in (b"\xcc", JUMP):
        there = guest()
        there.memory.put(BEHIND, written)
        assert there.refusal(LATER) == "FOREIGN_PATCH"
        there = guest(at=HOT + 22)
        there.memory.put(BEHIND, written)
        assert there.refusal(LATER) == "FOREIGN_PATCH"


def test_a_kprobe_on_no_instruction_is_not_believed() -> None:
    there = guest(b"\xcc", at=BEHIND + 1, optimizable=False)
    assert there.plan(COVERED).tier is not None
    assert there.refusal(LATER) == "FOREIGN_PATCH"


def test_a_kernel_without_kprobes_has_none() -> None:
    names = {name: at for name, at in NAMES.items() if "kprobe" not in name}
    there = Guest(guest().memory, names, None)
    assert there.text().originals.missing == "" and there.plan(BEHIND).tier is Tier.OPTIMIZED


def test_a_kprobe_on_our_branch_leaves_it_ours() -> None:
    """The guest takes our jump for an instruction: beneath its breakpoint is our jump, beneath that the original."""
    there = guest(b"")
    ours = X86_64.branch(BEHIND, TEXT + 0x800)
    beneath = there.memory.read(BEHIND, 5)
    there.memory.put_words(TABLE + 8 * hashed(PROBED), 0)
    there.memory.put_words(TABLE + 8 * hashed(BEHIND), PROBES)
    there.memory.put_words(PROBES + 0x28, BEHIND)
    there.memory.put_words(PROBES + 0x40, 0)
    there.memory.put(PROBES + 0x50, ours[:1])
    there.memory.put(BEHIND, b"\xcc" + ours[1:])

    def overlay(address: int, data: bytes) -> bytes:
        at = BEHIND - address
        return data[:at] + beneath + data[at + 5 :] if 0 <= at <= len(data) - 5 else data

    there.overlay = overlay
    assert there.boundaries() == [0, 2, 3, 4, 8, 17, 22, 23, 24]
    assert there.plan(BEHIND).tier is Tier.OPTIMIZED


def test_a_list_that_is_none_is_not_believed() -> None:
    there = guest(b"\xcc")
    there.memory.put_words(TABLE + 8 * (hashed(PROBED) ^ 1), PROBES)
    there.memory.put_words(TABLE + 8 * hashed(PROBED), 0)
    assert "does not read as one" in there.text().originals.missing


def test_one_that_is_not_armed_changes_nothing() -> None:
    idle, armed = Kprobe(TEXT, b"", b"", 5), Kprobe(TEXT - 1, b"\x55", b"\xcc", 5)
    assert original(b"\x90\x90", TEXT, [idle, armed]) == b"\x90\x90"
    assert original(b"\x00\0\0\0", TEXT, [Kprobe(TEXT - 1, JUMP, b"\xe9\0\0\0\0", 5)]) == JUMP[1:]


def test_a_branch_of_one_size_with_the_breakpoint() -> None:
    """ppc64le: the word beneath is `opcode`, whether a trap or a branch stands there."""
    memory = Pages()
    slot = TEXT + 0x800
    memory.put(TEXT, bytes(0x1000))
    memory.put(TABLE, bytes(0x1000))
    memory.put(PROBES, bytes(0x1000))
    memory.put_words(TABLE + 8 * hashed(HOT), PROBES)
    memory.put_words(PROBES + 0x28, HOT)
    memory.put_words(PROBES + 0x40, AGGREGATE)
    memory.put(PROBES + 0x50, bytes.fromhex("a602087c"))
    memory.put_words(PROBES + 0x98, slot)
    layout = {name: at for name, at in LAYOUT.items() if not name.endswith("size")}
    there = kernel(memory, {"kprobe_table": TABLE, "aggr_pre_handler": AGGREGATE}, layout)
    for written, jumps in ((PPC64LE.breakpoint, False), (PPC64LE.branch(HOT, slot), True)):
        memory.put(HOT, written)
        assert kprobes.known(there, PPC64LE) == [Kprobe(HOT, bytes.fromhex("a602087c"), written, 4, jumps)]


def test_a_breakpoint_that_is_not_gdbs() -> None:
    """aarch64: the kernel's kprobes are told by the number in their `brk`. Other words there are the kernel's own."""
    memory = Pages()
    memory.put(TEXT, bytes(0x1000))
    memory.put(TABLE, bytes(0x1000))
    memory.put(PROBES, bytes(0x1000))
    memory.put_words(TABLE + 8 * hashed(HOT), PROBES)
    memory.put_words(PROBES + 0x28, HOT)
    opcode, brk_4, brk_0 = (bytes.fromhex(word) for word in ("e9031eaa", "800020d4", "000020d4"))
    memory.put(PROBES + 0x50, opcode)
    there = kernel(memory, {"kprobe_table": TABLE}, LAYOUT)
    for written, seen in ((brk_4, brk_4), (brk_0, brk_0), (opcode, b""), (bytes.fromhex("1f2003d5"), b"")):
        memory.put(HOT, written)
        assert kprobes.known(there, AARCH64) == [Kprobe(HOT, opcode if seen else b"", seen, 4)]
        assert OriginalText(there, AARCH64).read(HOT, HOT + 4) == (opcode if seen else written)


def test_lists_that_cannot_be_read_are_an_error() -> None:
    memory = Pages()
    memory.put_words(TABLE, PROBES)
    memory.put(TABLE + 8, bytes(0x200))
    with pytest.raises(OptprobeError):
        kprobes.known(kernel(memory, {"kprobe_table": TABLE}, LAYOUT), X86_64)
