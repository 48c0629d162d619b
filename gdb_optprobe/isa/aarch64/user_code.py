"""Code of 64-bit user programs: decoded, and copied to run elsewhere in the same program.

A copy is that of the kernel's code (relocator.py), and serves wherever the program is loaded: what it has of addresses
is relative to its own. An instruction that enters the kernel returns behind itself. Programs of 32 bits, AArch32, are
not supported.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gdb_optprobe.isa.aarch64 import decoder, landing_pads
from gdb_optprobe.isa.aarch64.exclusives import reserved
from gdb_optprobe.isa.aarch64.fields import word_of
from gdb_optprobe.isa.aarch64.relocator import relocate
from gdb_optprobe.isa.aarch64.writer import branch
from gdb_optprobe.isa.base import Hazard, Insn, Unrelocatable

AROUND = 256
"""Bytes around an instruction in which exclusive access that it may be inside of begins and ends."""
_FAR = 1 << 28


def decoded(code: bytes, address: int, bits: int) -> list[Insn]:
    """Decode code of a program, as Isa.decode; nothing of one of 32 bits."""
    return decoder.decode(code, address) if bits == 64 else []


def reserved_in(code: Sequence[Insn]) -> Collection[int]:
    """Return the addresses in `code` where a trap would make the program's store-exclusive fail, for ever."""
    return reserved({insn.address: insn for insn in code})


def is_landing_pad(insn: Insn) -> bool:
    """Return whether an indirect branch may arrive at it.

    A trap there is reported as a landing pad that was missed, but for `brk` (DDI 0487, BTI).
    """
    return landing_pads.is_bti(insn) or landing_pads.is_signing(insn)


def copied(insn: Insn, at: int, bits: int, pie: bool) -> bytes:
    """Copy `insn` to run at `at`, with the branch back behind it. Raises Unrelocatable, OutOfReach."""
    data = _copied(insn, at)
    moved = insn._replace(address=insn.address + _FAR, target=None if insn.target is None else insn.target + _FAR)
    if pie and _copied(moved, at + _FAR) != data:
        raise Unrelocatable(Hazard.READS_ITS_ADDRESS, insn)
    return data


def _copied(insn: Insn, at: int) -> bytes:
    if enters_kernel(insn):
        return insn.data + branch(at + insn.size, insn.end)
    return relocate([insn], at).data


def enters_kernel(insn: Insn) -> bool:
    """Return whether it is `svc`."""
    return word_of(insn.data) & 0xFFE0_001F == 0xD400_0001
