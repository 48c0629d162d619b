"""The code of guest/linux/event_fields.py: a handler that has the kernel assign the fields in its frame, and the gates.

    handler:  endbr64; sub $frame, %rsp
              file: event_call, tr, flags = 0, filter = MARK; room = bytes for the entry
              mov %rsp, %rdi; call assigns                the other arguments are as the tracepoint passed them
              cmpq $0, room; jne miss                     a gate sets it to 0 where the entry has room
              nopl 0(%rax,%rax)                           probed: the file is at %rsp
        out:  add $frame, %rsp; ret
        miss: lock incq missed(%rip); jmp out
"""

from __future__ import annotations

from gdb_optprobe.guest.linux.event_fields import EventFormat
from gdb_optprobe.isa.x86_64.writer import rel32

MARK = 0x6F70_7470
"""No address of the kernel's: no filter of its own is there."""
ENTER, FILE_IS_FIRST = (bytes.fromhex(code) for code in ("f30f1efa 4881ec", "4889e7"))
PROBED, LEAVE, RETURN = (bytes.fromhex(code) for code in ("0f1f440000", "4881c4", "c3"))
SET, IS_ZERO = bytes.fromhex("48c78424"), bytes.fromhex("4883bc24")
COUNT = bytes.fromhex("f048ff05")


def handler(made: EventFormat, missed: int, address: int) -> tuple[bytes, int, int]:
    """Return the code for its address, the offset of the probed instruction, and the bytes of its frame."""
    layout = made.layout
    # With the return address, the stack is aligned to 16 bytes at the call.
    frame = _word(made.entry + made.room + 8)
    code = bytearray(ENTER + frame)
    file = {layout.call: made.call, layout.trace: made.trace, layout.flags: 0, layout.filter: MARK}
    for offset, value in (file | {layout.size: made.room}).items():
        code += SET + _word(offset) + _word(value)
    code += FILE_IS_FIRST
    code += b"\xe8" + rel32(address + len(code), address + len(code) + 5, made.assigns)
    code += IS_ZERO + _word(layout.size) + b"\0"
    out = PROBED + LEAVE + frame + RETURN
    code += b"\x75" + bytes((len(out),))
    probed = len(code)
    code += out
    code += COUNT + rel32(address + len(code), address + len(code) + 8, missed)
    back = probed + len(PROBED) - (len(code) + 2)
    code += b"\xeb" + back.to_bytes(1, "little", signed=True)
    return bytes(code), probed, made.entry + made.room + 8


def reserve(made: EventFormat, address: int) -> bytes:
    """Return the gate of trace_event_buffer_reserve(fbuffer, file, size)."""
    code = _unless_ours(b"\x48\x81\xbe", made.layout.filter, b"", made.reserve, address)
    layout = made.layout
    store = b"\x48\x89\xb7" + _word(layout.buffer_file)  # mov %rsi, (%rdi)
    store += b"\x48\x8d\x86" + _word(made.entry) + b"\x48\x89\x87" + _word(layout.buffer_entry)
    store += b"\x48\xc7\x86" + _word(layout.size) + _word(0)
    # xor %eax, %eax; cmp room(%rsi), %rdx; ja to the end
    return code + b"\x31\xc0\x48\x3b\x96" + _word(layout.size) + b"\x77" + bytes((len(store),)) + store + b"\xc3"


def commit(made: EventFormat, address: int) -> bytes:
    """Return the gate of trace_event_buffer_commit(fbuffer)."""
    load = b"\x48\x8b\x8f" + _word(made.layout.buffer_file)  # mov (%rdi), %rcx
    return _unless_ours(b"\x48\x81\xb9", made.layout.filter, load, made.commit, address) + b"\xc3"


def _unless_ours(compare: bytes, offset: int, before: bytes, function: int, address: int) -> bytes:
    """Return code that continues at `function` where the file has not our mark."""
    code = before + compare + _word(offset) + _word(MARK) + b"\x0f\x85"
    return code + rel32(address, address + len(code) + 4, function)


def _word(value: int) -> bytes:
    """Return 32 bits, which the processor extends by their sign."""
    return (value & 0xFFFF_FFFF).to_bytes(4, "little")
