"""What the kernel's vectors say of its stacks (arch/arm64/kernel/entry.S, kernel_ventry).

    sub  sp, sp, #PT_REGS_SIZE
    add  sp, sp, x0
    sub  x0, sp, x0
    tbnz w0, #THREAD_SHIFT, …     stacks are aligned to twice their size
"""

from __future__ import annotations

from gdb_optprobe.guest.linux.arch.aarch64.constants import added
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.isa.aarch64.fields import is_tb, rd

VECTORS = "vectors"
EACH = 0x80
"""Bytes of a vector."""
CURRENT_EL = 4
"""Of the first vector for exceptions in the kernel itself, on its own stack."""
PLAUSIBLE = range(13, 18)
SP = 31


def thread_size(kernel: Kernel) -> int:
    """Return THREAD_SIZE. Raises NoSuchKernel."""
    tested = [word >> 19 & 31 | (word >> 26 & 32) for word in _words(kernel) if is_tb(word) and rd(word) == 0]
    if len(tested) != 1 or tested[0] not in PLAUSIBLE:
        raise NoSuchKernel("the size of a thread's stack is not known: the kernel's vectors do not test it")
    return 1 << tested[0]


def frame_size(kernel: Kernel) -> int:
    """Return PT_REGS_SIZE. Raises NoSuchKernel."""
    first = added(_words(kernel)[0])
    if first is None or first[:2] != (SP, SP) or not 0 < -first[2] < 1 << 12:
        raise NoSuchKernel("the kernel's vectors do not make room for registers")
    return -first[2]


def _words(kernel: Kernel) -> tuple[int, ...]:
    """Return the first instructions of the vector for synchronous exceptions in the kernel. Raises OptprobeError."""
    start = kernel.address(VECTORS) + CURRENT_EL * EACH
    data = kernel.read(start, start + EACH)
    return tuple(int.from_bytes(data[at : at + 4], "little") for at in range(0, EACH, 4))
