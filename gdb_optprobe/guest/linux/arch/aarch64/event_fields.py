"""The code of guest/linux/event_fields.py: a handler that has the kernel assign the fields in its frame, and the gates.

    handler:  stp x29, x30, [sp, #-16]!; mov x29, sp; sub sp, sp, #room
              file: event_call, tr, flags = 0, filter = MARK; room = bytes for the entry
              mov x0, sp; blr assigns                     the other arguments are as the tracepoint passed them
              ldr x16, room; cbnz x16, miss               a gate sets it to 0 where the entry has room
              nop                                         probed: the file is at sp
        out:  add sp, sp, #room; ldp x29, x30, [sp], #16; ret
        miss: ldxr, add, stxr missed; b out
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.guest.linux.event_fields import EventFormat
from gdb_optprobe.guest.linux.kernel import NoSuchKernel
from gdb_optprobe.isa.aarch64.abi import FP, LR, SP
from gdb_optprobe.isa.aarch64.encodings import (
    Item,
    branch_if,
    branch_on_zero,
    constant,
    encode_items,
    jump,
    number,
    pair,
    plain,
    scaled,
)
from gdb_optprobe.isa.codegen import Comparison, Label

MARK = 0x6F70_7470
"""No address of the kernel's: no filter of its own is there."""
NOP = 0xD503_201F
RECORD, WORD = 16, 8
LARGEST_OFFSET = 1 << 11
_FBUFFER, _FILE, _ROOM = "x0", "x1", "x2"
_WORK, _OTHER, _FAILED = "x16", "x17", "x9"


def handler(made: EventFormat, missed: int) -> tuple[bytes, int, int]:
    """Return the code, the offset of the probed instruction, and the bytes of its frame. Raises NoSuchKernel."""
    room, miss, out, again = made.entry + made.room, Label(), Label(), Label()
    room = -(-room // RECORD) * RECORD
    before: list[Item] = [
        pair("push_pair", FP, LR, -RECORD),
        number("addi", FP, SP, 0),
        number("subi", SP, SP, room),
        *_file(made),
        number("addi", "x0", SP, 0),
        *constant(_WORK, made.assigns),
        plain("blr", n=_WORK),
        _load(_WORK, SP, made.layout.size),
        branch_on_zero("cbnz", _WORK, miss),
    ]
    after: list[Item] = [
        NOP,
        out,
        number("addi", SP, SP, room),
        pair("pop_pair", FP, LR, RECORD),
        plain("ret", n=LR),
        miss,
        *constant(_WORK, missed),
        again,
        plain("ldxr", _OTHER, _WORK),
        number("addi", _OTHER, _OTHER, 1),
        plain("stxr", _OTHER, _WORK, _FAILED),
        branch_on_zero("cbnzw", _FAILED, again),
        jump(out),
    ]
    code = encode_items([*before, *after])
    probed = sum(not isinstance(item, Label) for item in before) * 4
    return code, probed, room + RECORD


def _file(made: EventFormat) -> Iterator[Item]:
    layout = made.layout
    file = {layout.call: made.call, layout.trace: made.trace, layout.flags: 0, layout.filter: MARK}
    for offset, value in (file | {layout.size: made.room}).items():
        if value:
            yield from constant(_WORK, value)
        yield _store(_WORK if value else "xzr", SP, offset)


def reserve(made: EventFormat, _: int) -> bytes:
    """Return the gate of trace_event_buffer_reserve(fbuffer, file, size)."""
    layout, full, other = made.layout, Label(), Label()
    return encode_items(
        [
            _load(_WORK, _FILE, layout.filter),
            *_unless_ours(other),
            _load(_WORK, _FILE, layout.size),
            plain("subs", "xzr", _ROOM, _WORK),
            branch_if(Comparison.GT, full),
            _store(_FILE, _FBUFFER, layout.buffer_file),
            number("addi", _WORK, _FILE, made.entry),
            _store(_WORK, _FBUFFER, layout.buffer_entry),
            _store("xzr", _FILE, layout.size),
            plain("orr", "x0", "xzr", _WORK),
            plain("ret", n=LR),
            full,
            *constant("x0", 0),
            plain("ret", n=LR),
            other,
            *_go_to(made.reserve),
        ]
    )


def commit(made: EventFormat, _: int) -> bytes:
    """Return the gate of trace_event_buffer_commit(fbuffer)."""
    layout, other = made.layout, Label()
    load = _load(_WORK, _FBUFFER, layout.buffer_file), _load(_WORK, _WORK, layout.filter)
    return encode_items([*load, *_unless_ours(other), plain("ret", n=LR), other, *_go_to(made.commit)])


def _go_to(function: int) -> tuple[Item, ...]:
    """Return a jump: a gate near a module's code is far from the kernel's."""
    return (*constant(_WORK, function), plain("ret", n=_WORK))


def _unless_ours(other: Label) -> tuple[Item, ...]:
    """Return what leads to `other` where what was loaded is not our mark."""
    return (*constant(_OTHER, MARK), plain("subs", "xzr", _WORK, _OTHER), branch_if(Comparison.NE, other))


def _load(to: str, base: str, offset: int) -> int:
    return scaled("ldr", to, base, _checked(offset), WORD)


def _store(register: str, base: str, offset: int) -> int:
    return scaled("str", register, base, _checked(offset), WORD)


def _checked(offset: int) -> int:
    if not 0 <= offset < LARGEST_OFFSET or offset % WORD:
        raise NoSuchKernel("the layout of this kernel's events is none that is known")
    return offset
