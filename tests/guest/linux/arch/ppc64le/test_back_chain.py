"""Frames by the back chain, before and after a function has made its own, and across an interrupt."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest

from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.ppc64le.back_chain import (
    MARKER,
    MARKERS,
    SHORT_MARKER,
    Frame,
    State,
    frame_at,
    unwind,
)
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.fields import to_bytes
from tests.isa.ppc64le.kernel import kernel

START, SP, CALLER, RETURN = 0xC000_0000_0010_0000, 0xC000_0000_0F00_3000, 0xC000_0000_0F00_3080, 0xC000_0000_0020_0004
# mflr r0; std r0,16(r1); stdu r1,-128(r1); bl; addi r1,r1,128; ld r0,16(r1); mtlr r0; blr
WORDS = (0x7C0802A6, 0xF8010010, 0xF821FF81, 0x48001001, 0x38210080, 0xE8010010, 0x7C0803A6, 0x4E800020)
CODE = {insn.address: insn for insn in PPC64LE.decode(to_bytes(*WORDS), START)}


def memory(words: Mapping[int, int]):  # type: ignore[no-untyped-def]
    def read(address: int, size: int) -> bytes:
        found = b"".join(words[at].to_bytes(8, "little") for at in range(address, address + size, 8) if at in words)
        if len(found) != size:
            raise Unreadable(address, size)
        return found

    return read


@pytest.mark.parametrize(
    "index, sp",
    [(0, CALLER), (1, CALLER), (2, CALLER), (3, SP), (4, SP), (5, CALLER), (6, CALLER), (7, CALLER)],
)
def test_the_caller_before_and_after_each_instruction_of_a_function(index: int, sp: int) -> None:
    saved = index >= 2
    stack = {SP: CALLER, CALLER: CALLER + 0x100, CALLER + 16: RETURN if saved else 0x1234}
    stack |= {sp + offset: 0 for offset in MARKERS if sp + offset not in stack}
    lr = RETURN if index < 4 or index == 7 else 0xDEAD
    state = State({"pc": START + 4 * index, "r1": sp, "lr": lr})
    caller = unwind(state, lambda pc: (START, CODE), memory(stack))
    assert caller is not None
    assert (caller.registers["pc"], caller.registers["r1"], caller.exact) == (RETURN, CALLER, False)


def test_a_frame_that_has_grown_by_a_random_offset_is_as_large_as_its_back_chain_says() -> None:
    """A system call's, with randomize_kstack_offset: another way through the function makes it no larger."""
    grown = CALLER + 0x40
    stack = {SP: grown, grown: grown + 0x100, grown + 16: RETURN, SP + 96: 0, SP + 32: 0, CALLER + 16: 0x1234}
    caller = unwind(State({"pc": START + 16, "r1": SP, "lr": 0xDEAD}), lambda pc: (START, CODE), memory(stack))
    assert caller == State({"pc": RETURN, "r1": grown, "lr": RETURN}, exact=False)


def test_frames_further_out_are_the_back_chain() -> None:
    stack = {SP: CALLER, CALLER + 16: RETURN, SP + 96: 0, SP + 32: 0}
    caller = unwind(State({"pc": START + 16, "r1": SP}, exact=False), lambda pc: None, memory(stack))
    assert caller == State({"pc": RETURN, "r1": CALLER, "lr": RETURN}, exact=False)


@pytest.mark.parametrize("offset, marker", [(MARKERS[0], MARKER), (MARKERS[1], MARKER), (MARKERS[1], SHORT_MARKER)])
@pytest.mark.parametrize("user", [False, True])
def test_interrupted_code_is_in_a_pt_regs(offset: int, marker: int, user: bool) -> None:
    regs = [*range(0x100, 0x120), START + 8, 0x9000 | user << 14, 0, 7, RETURN, 0, 0]
    stack = {SP + 8 * n: 0 for n in range(200)} | {SP: CALLER, SP + offset: marker}
    stack |= {SP + offset + 16 + 8 * n: value for n, value in enumerate(regs)}
    caller = unwind(State({"pc": 0xC000_0000_0000_0500, "r1": SP}, exact=False), lambda pc: None, memory(stack))
    if user:
        assert caller is None
    else:
        assert caller is not None and caller.exact
        assert [caller.registers[name] for name in ("pc", "r1", "lr", "r31")] == [START + 8, 0x101, RETURN, 0x11F]


@pytest.mark.parametrize("stack", [{}, {SP: 0}, {SP: SP}, {SP: SP - 16, SP - 16 + 16: 5}, {SP: CALLER, CALLER + 16: 0}])
def test_the_end_of_the_stack(stack: dict[int, int]) -> None:
    stack = {SP + 32: 0, SP + 96: 0} | stack if stack else stack
    assert unwind(State({"pc": START, "r1": SP}, exact=False), lambda pc: None, memory(stack)) is None


def test_every_function_of_the_kernel_is_understood_at_its_first_instructions() -> None:
    """Whatever moves r1 or LR in a function's first words is one of the ways known here."""
    found = kernel()
    odd, seen = [], 0
    for start, size in found.functions[::40]:
        code = found.function(start, size)
        frame = frame_at(start, start, code)
        assert frame == Frame()
        stdu = next((i for i in list(code.values())[:24] if i.text.startswith("stdu r1, ") and "(r1)" in i.text), None)
        if stdu is not None and stdu.flow.value == "next":
            after = frame_at(stdu.end, start, code)
            seen += 1
            if after.size != -struct.unpack("<h", struct.pack("<H", int.from_bytes(stdu.data[:2], "little") & ~3))[0]:
                odd.append(f"{start:#x} {after}")
    assert seen > 300 and len(odd) < seen / 50, odd
