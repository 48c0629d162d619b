"""The code that writes into programs on x86-64: r15 has the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gdb_optprobe.guest.linux.user.program_writer import HEAD, ROW, Writing
from gdb_optprobe.isa.base import OutOfReach

_SAVE = bytes.fromhex("41ff7708 41ff37 9c 50 51 52 53 55 56 57 4150 4151 4152 4153 4154 4155 4156")
_RESTORE = bytes.fromhex("415e 415d 415c 415b 415a 4159 4158 5f 5e 5d 5b 5a 59 58 9d")
_WIPE = bytes.fromhex("48c74424f800000000")  # movq $0, -8(%rsp): what the call left there; see mmap_hook.py
_DONE = bytes.fromhex("49c7471001000000 415f c3")  # movq $1, 16(%r15); pop %r15; ret


class _Writing:
    pc = "rip"
    table = "r15"
    read: tuple[str, ...] = ("rsp",)
    last = 1

    def code(self, address: int, write: int, put: int) -> bytes:
        made = bytearray(_SAVE)

        def call(target: int) -> None:
            try:
                made.extend(b"\xe8" + (target - address - len(made) - 5).to_bytes(4, "little", signed=True))
            except OverflowError:
                raise OutOfReach(address, target) from None
            made.extend(_WIPE)

        made += bytes.fromhex("4889e5 4883e4f0 fc")  # mov %rsp, %rbp; and $-16, %rsp; cld
        made += bytes.fromhex("498d5f") + bytes([HEAD.size])  # lea rows(%r15), %rbx
        loop = len(made)
        made += bytes.fromhex("488b3b 4885ff 74")  # mov (%rbx), %rdi; test %rdi, %rdi; je end
        leave = len(made)
        made += b"\0"
        made += bytes.fromhex("488b7308 488b5310 8b4b18 448b431c")  # address, data, size, flags: rsi, rdx, ecx, r8d
        call(write)
        made += bytes.fromhex("894320 488b3b")  # mov %eax, 32(%rbx); mov (%rbx), %rdi
        call(put)
        made += bytes.fromhex("4883c3") + bytes([ROW.size])  # add $row, %rbx
        made += b"\xeb" + (loop - len(made) - 2).to_bytes(1, "little", signed=True)
        made[leave] = len(made) - leave - 1
        made += bytes.fromhex("4889ec") + _RESTORE + _DONE  # mov %rbp, %rsp
        return bytes(made)

    def back(self, registers: Mapping[str, int], word: Callable[[int], int]) -> Mapping[str, int]:
        stack = registers["rsp"]
        return {"rip": word(stack), "rsp": stack + 8}


WRITING = _Writing()
_: Writing = WRITING
