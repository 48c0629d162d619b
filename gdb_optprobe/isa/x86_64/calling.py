"""Encode a call of a function, by the C calling convention (System V ABI, AMD64 3.2.3); only the stack is written.

    pushfq, push %rax … %r11 (what a function may change), push %rbp; mov %rsp, %rbp; and $-16, %rsp; cld
    xor %edi, %edi; xchg %rdi, cell(%rip)                   of a call that takes a cell
    mov $argument, %rdi …
    call function                     direct, so that it needs no landing pad (IBT)
    mov %rax, cell(%rip)                                    of a call that gives one
    movq $0, -8(%rsp)                 returned; no return address into the thunk stays below the stack
    mov %rbp, %rsp; pop …; popfq
    jmp back                          done
"""

from __future__ import annotations

from collections.abc import Sequence

from gdb_optprobe.isa.base import OutOfReach
from gdb_optprobe.isa.calling import Calling, Thunk

_SAVE = bytes.fromhex("9c 50 51 52 56 57 4150 4151 4152 4153 55 4889e5 4883e4f0 fc")
_RESTORE = bytes.fromhex("4889ec 5d 415b 415a 4159 4158 5f 5e 5a 59 58 9d")
_WIPE = bytes.fromhex("48c74424f800000000")
# mov imm32, mov imm64: to %rdi, %rsi, %rdx
_SHORT = tuple(bytes.fromhex(code) for code in ("bf", "be", "ba"))
_LONG = tuple(bytes.fromhex(code) for code in ("48bf", "48be", "48ba"))
_BRANCH = 5
_GIVE, _TAKE = bytes.fromhex("488905"), bytes.fromhex("31ff 48873d")  # behind each a distance


def _thunk(
    address: int, function: int, arguments: Sequence[int], back: int, takes: int | None = None, gives: int | None = None
) -> Thunk:
    code = bytearray(_SAVE)

    def relative(opcode: bytes, target: int) -> None:
        distance = target - (address + len(code) + len(opcode) + 4)
        if not -(1 << 31) <= distance < 1 << 31:
            raise OutOfReach(address, target)
        code.extend(opcode + distance.to_bytes(4, "little", signed=True))

    if takes is not None:
        relative(_TAKE, takes)
    for number, value in enumerate(arguments, takes is not None):
        value %= 1 << 64
        code += _SHORT[number] + value.to_bytes(4, "little") if value < 1 << 32 else (
            _LONG[number] + value.to_bytes(8, "little")
        )
    relative(b"\xe8", function)
    if gives is not None:
        relative(_GIVE, gives)
    returned = address + len(code)
    code += _WIPE + _RESTORE
    done = address + len(code)
    relative(b"\xe9", back)
    return Thunk(address, bytes(code), returned, done, back)


class _Calling:
    """size: bytes of a thunk, at most. begins: the first bytes of every thunk."""

    pc = "rip"
    result = "rax"
    arguments = len(_LONG)
    begins = _SAVE
    size = len(_SAVE) + len(_RESTORE) + len(_WIPE) + 10 * arguments + 2 * _BRANCH

    thunk = staticmethod(_thunk)


CALLING = _Calling()
_: Calling = CALLING
