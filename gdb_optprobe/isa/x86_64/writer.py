"""Encode branches, pushes of return addresses, and the counter.

    count, flags dead                    count, flags alive
    ┌───────────────────────────────┐    ┌───────────────────────────────┐
    │ lock incq counter(%rip)   8 B │    │ pushfq                    1 B │
    └───────────────────────────────┘    │ lock incq counter(%rip)   8 B │
                                         │ popfq                     1 B │
                                         └───────────────────────────────┘
A counter that is not in reach relative to the code is addressed absolutely (one byte
more), which reaches the upper and the lower 2 GiB of the address space: the whole kernel image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError

from gdb_optprobe.isa.base import Dead, Insn, OutOfReach, padded
from gdb_optprobe.isa.x86_64.abi import CALLEE_SAVED
from gdb_optprobe.isa.x86_64.templates import templates

BRANCH_SIZE = 5
_JUMP = Struct("<Bi")  # opcode, displacement
MASK = 0xFFFF_FFFF_FFFF_FFFF
# lea 8(%rsp), %rsp: moves the stack as popfq does, which takes an emulating QEMU far longer.
DROP = bytes.fromhex("488d642408")


def signed(value: int, bits: int = 64) -> int:
    """Return `value` modulo 2**bits, as a two's complement number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def fits(value: int, bits: int = 32) -> bool:
    """Return whether a signed field of `bits` holds `value`."""
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def rel32(source: int, end: int, target: int) -> bytes:
    """Return the displacement from `end`, where the instruction at `source` ends, to `target`. Raises OutOfReach."""
    displacement = signed(target - end)
    if not fits(displacement):
        raise OutOfReach(source, target)
    return displacement.to_bytes(4, "little", signed=True)


def branch(source: int, target: int) -> bytes:
    """Encode `jmp rel32`. Raises OutOfReach."""
    return b"\xe9" + rel32(source, source + BRANCH_SIZE, target)


def branches(sources: Sequence[int], targets: Sequence[int]) -> list[bytes]:
    """Encode `jmp rel32` from each of `sources`. Raises OutOfReach."""
    pack = _JUMP.pack
    try:
        return [pack(0xE9, target - source - BRANCH_SIZE) for source, target in zip(sources, targets, strict=True)]
    except StructError:
        return [branch(source, target) for source, target in zip(sources, targets, strict=True)]


def redirect(insn: Insn, target: int) -> bytes:
    """Encode a `jmp rel32` or `jcc rel32` with another target. Raises OutOfReach."""
    return insn.data[:-4] + rel32(insn.address, insn.end, target)


def push(number: int) -> bytes:
    """Push 64 bits; no register and no flag changes."""
    value = signed(number)
    low = b"\x68" + (number & 0xFFFF_FFFF).to_bytes(4, "little")
    if fits(value):
        return low
    return low + b"\xc7\x44\x24\x04" + (number >> 32 & 0xFFFF_FFFF).to_bytes(4, "little")  # movl $high, 4(%rsp)


def store(number: int, offset: int) -> bytes:
    """Store 64 bits at `offset`(%rsp), 0 ≤ offset < 124; no register and no flag changes."""
    value = signed(number)
    if fits(value):
        return b"\x48\xc7\x44\x24" + bytes((offset,)) + (value & 0xFFFF_FFFF).to_bytes(4, "little")
    return b"".join(
        b"\xc7\x44\x24" + bytes((offset + 4 * half,)) + (number >> 32 * half & 0xFFFF_FFFF).to_bytes(4, "little")
        for half in (0, 1)
    )


def bases(start: int, code: Mapping[int, Insn]) -> Mapping[int, int]:
    """Return nothing: counters need no register to be addressed."""
    return {}


def count(counter: int, to: int, dead: Dead, base: int | None = None) -> bytes:
    """Return code for `to` that adds one, atomically, to the 8-byte `counter` and changes nothing that lives."""
    have = templates()
    if dead.flags:
        return increment(counter, to)
    before, after = have["save_flags"].data, have["restore_flags"].data
    return before + increment(counter, to + len(before)) + after


def counts(
    at: int, step: int, counters: Sequence[int], ends: Sequence[int], dead: Dead, moved: bytes = b""
) -> bytes:
    """Return counts that follow one another, `step` bytes each, with `moved` and a branch to each of `ends`.

    Raises OutOfReach.
    """
    have, kept = templates(), not dead.flags
    before, after = (have["save_flags"].data, have["restore_flags"].data) if kept else (b"", b"")
    after += moved
    template = have["count"]
    assert template.number + 4 == template.size, "the displacement is the instruction's end"
    counted = len(before) + template.size
    size = counted + len(after) + BRANCH_SIZE
    if size > step:
        raise OutOfReach(at, ends[0] if ends else at)
    pack = Struct(f"<{counted - 4}si{len(after) + 1}si{step - size}s").pack
    first, second, rest = before + template.data[:-4], after + b"\xe9", b"\xcc" * (step - size)
    places = range(at, at + step * len(counters), step)
    try:
        return b"".join(
            [
                pack(first, counter - place - counted, second, end - place - size, rest)
                for place, counter, end in zip(places, counters, ends, strict=True)
            ]
        )
    except StructError:
        pieces = [count(counter, place, dead) + moved for place, counter in zip(places, counters, strict=True)]
        return padded(pieces, at, step, ends, branch, b"\xcc")


def increment(counter: int, to: int) -> bytes:
    """Return code for `to` that adds one, atomically, to `counter`, and changes flags."""
    template = templates()["count"]
    displacement = signed(counter - to - template.size)
    if fits(displacement):
        return template.filled(displacement)
    absolute = signed(counter)
    if not fits(absolute):
        raise OutOfReach(to, counter)
    # ModRM 05 is disp32(%rip); 04 with SIB 25 is disp32 alone (SDM volume 2, tables 2-2 and 2-3).
    assert template.data[template.number - 1] == 0x05
    return template.data[: template.number - 1] + b"\x04\x25" + absolute.to_bytes(4, "little", signed=True)


def pushed(insn: Insn) -> int:
    """Return by how many bytes `insn` of a lowered program moves the stack pointer down; negative for up."""
    for lea, size in _MOVES.items():
        if insn.data.startswith(lea):
            return -int.from_bytes(insn.data[-size:], "little", signed=True)
    return 8 * (insn.text.startswith("push") - insn.text.startswith(("popq", "popfq")))


def saves(insn: Insn) -> str:
    """Return the register that `insn` of a lowered program pushes, of those that a caller's frame may depend on."""
    name = insn.text.removeprefix("pushq").strip(" \t%")
    return name if name in CALLEE_SAVED else ""


_MOVES = {b"\x48\x8d\x64\x24": 1, b"\x48\x8d\xa4\x24": 4}  # lea rsp, [rsp + …], and the bytes of the offset
