"""The code of the mmap hook (guest/linux/user/mmap_hook.py).

A call leaves its return address below the stack pointer. It is overwritten: on the stack of a thread that sleeps
later it would look as if the thread were still here. (mm/util.c, vm_mmap_pgoff(file, addr, len, prot, flag, pgoff))
"""

from __future__ import annotations

from collections.abc import Iterator

from gdb_optprobe.guest.linux.user.mmap_hook import (
    EXECUTABLE,
    MOST_ERRORS,
    PATIENCE,
    SHARED,
    WRITABLE,
    WRITE,
    MmapKernel,
)
from gdb_optprobe.isa.base import Code
from gdb_optprobe.isa.x86_64.encoder import Relative
from gdb_optprobe.isa.x86_64.templates import assembled
from gdb_optprobe.maps.mmap_patches import DATA, FAILED, INODE, INSIDE, LENGTH, OFFSET, OLD, ROWS, SIZE

_CONSTANTS = ("table",)
_PLACE = b"\x90" * 5


def lower_mmap_hook(kernel: MmapKernel, table: int, force: int) -> Code:
    """Return the code. Raises OptprobeError where keystone cannot be loaded or assembles wrongly.

    table: address of the rows. force: flag that makes `writes` write into private copies.
    """
    made = assembled(_source(kernel, force), _CONSTANTS)
    data = made.with_constants((table,))

    def at(address: int) -> bytes:
        code = bytearray(data)
        for name, target in (("maps", kernel.maps), ("writes", kernel.writes), ("waits", kernel.waits)):
            place = made.places[name]
            assert code[place : place + len(_PLACE)] == _PLACE, "room for a jump"
            code[place : place + len(_PLACE)] = Relative(b"\xe9" + bytes(4), 1, target).encode(address + place)
        return bytes(code)

    return at


def _source(kernel: MmapKernel, force: int) -> Iterator[str]:
    """Yield the assembly as capstone prints it, with labels."""
    page = 1 << kernel.bits
    saved = ("rbx", "rbp", "r12", "r13", "r14", "r15")
    yield from ("test rdi, rdi", "je maps", f"test cl, {EXECUTABLE}", "je maps", f"test cl, {WRITABLE}", "jne maps")
    yield from (f"test r8b, {SHARED}", "jne maps")
    yield from (f"push {name}" for name in saved)
    yield from f"""
        mov r15, qword ptr [rip + table]
        mov rbx, qword ptr [rdi{_offset(kernel.inode)}]
        lea r12, [rdx{_offset(page - 1)}]
        mov r13, r9
        lock inc qword ptr [r15{_offset(INSIDE)}]
        call maps
        mov qword ptr [rsp - 8], 0
        push rax
        cmp rax, -{MOST_ERRORS:#x}
        ja done
        mov r14, rax
        and r12, {-page & (1 << 64) - 1:#x}
        shl r13, {kernel.bits:#x}
        lea rbp, [r15{_offset(ROWS)}]
    row:
        mov rax, qword ptr [rbp{_offset(INODE)}]
        test rax, rax
        je done
        cmp rax, rbx
        jne next
        mov rsi, qword ptr [rbp{_offset(OFFSET)}]
        sub rsi, r13
        jb next
        cmp rsi, r12
        jae next
        add rsi, r14
        push rsi
        push 0
        push 0
        mov rdx, rsp
        mov r8d, {force & ~WRITE:#x}
        call accesses
        mov qword ptr [rsp - 8], 0
        jne failed
        mov rax, qword ptr [rsp]
        cmp rax, qword ptr [rbp{_offset(OLD)}]
        jne other
        mov rax, qword ptr [rsp + 8]
        cmp rax, qword ptr [rbp{_offset(OLD + 8)}]
        jne other
        mov rsi, qword ptr [rsp + 0x10]
        lea rdx, [rbp{_offset(DATA)}]
        mov r8d, {force:#x}
        call accesses
        mov qword ptr [rsp - 8], 0
        jne failed
        add rsp, 0x18
        jmp next
    failed:
        mov edi, {PATIENCE:#x}
        call waits
        mov qword ptr [rsp - 8], 0
        test rax, rax
        jle other
        add rsp, 0x18
        jmp done
    other:
        add rsp, 0x18
        lock inc qword ptr [r15{_offset(FAILED)}]
        jmp done
    next:
        add rbp, {SIZE:#x}
        jmp row
    done:
        lock dec qword ptr [r15{_offset(INSIDE)}]
        pop rax
    """.strip().splitlines()
    yield from (f"pop {name}" for name in reversed(saved))
    yield "ret"
    yield from f"""
    accesses:
        mov rdi, {_signed(kernel.current):#x}
        mov rdi, qword ptr gs:[rdi]
        mov rdi, qword ptr [rdi{_offset(kernel.mm)}]
        mov ecx, dword ptr [rbp{_offset(LENGTH)}]
        call writes
        mov qword ptr [rsp - 8], 0
        cmp eax, dword ptr [rbp{_offset(LENGTH)}]
        ret
    """.strip().splitlines()
    for name in ("maps", "writes", "waits"):
        yield f"{name}:"
        yield from ["nop"] * len(_PLACE)


def _signed(address: int) -> int:
    """Return a per-CPU variable's offset from a CPU's base: below 2 GiB, or negative relative to the image's own base.
    """
    return address - (1 << 64) if address >> 63 else address


def _offset(number: int) -> str:
    """Return the displacement as capstone prints it."""
    return f" + {number:#x}" if number > 9 else f" + {number}" if number else ""
