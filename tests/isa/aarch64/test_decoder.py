"""What is an instruction, where it goes and what it is called, against binutils."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import pairwise

import pytest

from gdb_optprobe.isa.aarch64 import AARCH64
from gdb_optprobe.isa.aarch64.decoder import PIECE
from gdb_optprobe.isa.aarch64.fields import to_bytes
from gdb_optprobe.isa.base import Flow, Insn
from tests.examples import samples
from tests.isa.aarch64.kernel import different_words

HERE = 0xFFFF_8000_0801_0000
NOP, BL = 0xD503201F, 0x94000004
OBJDUMP = "aarch64-linux-gnu-objdump"
needs_binutils = pytest.mark.skipif(
    shutil.which(OBJDUMP) is None, reason=f"no {OBJDUMP}: install binutils-aarch64-linux-gnu"
)


@pytest.mark.parametrize(
    ("word", "flow", "target"),
    [
        (0x14000004, Flow.JUMP, HERE + 0x10),
        (0x17FFFFFC, Flow.JUMP, HERE - 0x10),
        (0x15FFFFFF, Flow.JUMP, HERE + (1 << 27) - 4),
        (0x16000000, Flow.JUMP, HERE - (1 << 27)),
        (0x94000004, Flow.CALL, HERE + 0x10),
        (0x54000080, Flow.BRANCH, HERE + 0x10),  # b.eq
        (0x5480000D, Flow.BRANCH, HERE - (1 << 20)),  # b.le
        (0x5400008E, Flow.JUMP, HERE + 0x10),  # b.al
        (0x5400008F, Flow.JUMP, HERE + 0x10),  # b.nv
        (0xB4000080, Flow.BRANCH, HERE + 0x10),  # cbz
        (0x35FFFFC1, Flow.BRANCH, HERE - 8),  # cbnz
        (0x3607FFE1, Flow.BRANCH, HERE - 4),  # tbz
        (0xB6F80081, Flow.BRANCH, HERE + 0x10),  # tbz x1, #63
        (0xB7040001, Flow.BRANCH, HERE - 0x8000),  # tbnz
        (0xD61F0200, Flow.INDIRECT_JUMP, None),  # br x16
        (0xD71F0801, Flow.INDIRECT_JUMP, None),  # braa x0, x1
        (0xD61F081F, Flow.INDIRECT_JUMP, None),  # braaz x0
        (0xD63F0000, Flow.INDIRECT_CALL, None),  # blr x0
        (0xD73F0C01, Flow.INDIRECT_CALL, None),  # blrab x0, x1
        (0xD65F03C0, Flow.RETURN, None),
        (0xD65F0BFF, Flow.RETURN, None),  # retaa
        (0xD69F03E0, Flow.SYSTEM, None),  # eret
        (0xD69F0BFF, Flow.SYSTEM, None),  # eretaa
        (0xD6BF03E0, Flow.SYSTEM, None),  # drps
        (0xD4000001, Flow.SYSTEM, None),  # svc
        (0xD4000002, Flow.SYSTEM, None),  # hvc
        (0xD4000003, Flow.SYSTEM, None),  # smc
        (0xD4A00001, Flow.SYSTEM, None),  # dcps1
        (0xD4200000, Flow.TRAP, None),
        (0xD4210000, Flow.TRAP, None),  # BUG()
        (0xD4400000, Flow.TRAP, None),  # hlt
        (0x00000000, Flow.TRAP, None),  # udf
        (0x0000FFFF, Flow.TRAP, None),
        (0xD503201F, Flow.NEXT, None),
        (0xD503233F, Flow.NEXT, None),  # paciasp
        (0xD5384100, Flow.NEXT, None),  # mrs x0, sp_el0
        (0x10000080, Flow.NEXT, None),  # adr
        (0xA9BF7BFD, Flow.NEXT, None),  # stp
    ],
)
def test_flow_and_target(word: int, flow: Flow, target: int | None) -> None:
    insn, *rest = AARCH64.decode(to_bytes(word), HERE)
    assert not rest and (insn.flow, insn.target) == (flow, target)


def test_a_target_is_written_as_gdb_does() -> None:
    insns = AARCH64.decode(to_bytes(0x14000004, 0x36080041, 0xD2800021), 0x1000)
    assert [insn.text for insn in insns] == ["b 0x1010", "tbz w1, #1, 0x100c", "mov x1, #1"]


def test_sweep_ends_before_what_is_no_instruction_or_is_cut() -> None:
    assert len(AARCH64.decode(to_bytes(NOP, 0xFFFFFFFF, NOP), HERE)) == 1
    assert len(AARCH64.decode(to_bytes(NOP, NOP)[:7], HERE)) == 1
    assert AARCH64.decode(b"", HERE) == []


def test_pieces_meet() -> None:
    data = to_bytes(NOP, BL, 0xA9BF7BFD) * (PIECE // 8)
    insns = AARCH64.decode(data, HERE)
    assert insns[-1].end == HERE + len(data) and len(data) > PIECE
    assert all(here.end == there.address for here, there in pairwise(insns))
    assert insns[-2].target == insns[-2].address + 0x10


def disassembled(words: Sequence[bytes]) -> list[str]:
    """Return what binutils reads in each word, at addresses from 0 on."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(words))
        file.flush()
        command = [OBJDUMP, "-D", "-z", "-b", "binary", "-m", "aarch64", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(r"^ *[0-9a-f]+:\t[0-9a-f]{8} \t(.*)", shown, re.M)


# Other names of the same, and what capstone 5 does not know.
_NAMES = {"b.cc": "b.lo", "b.cs": "b.hs"}
_UNKNOWN = re.compile(r"ldlar|stllr|dc |clearbhb|hint")


def differs(insn: Insn | None, theirs: str) -> bool:
    name, _, operands = theirs.partition("\t")
    if insn is None:
        return not (name == ".inst" or _UNKNOWN.match(theirs))
    direct = re.search(r"0x[0-9a-f]+(?= |$)", operands) if insn.target is not None else None
    if insn.target is not None and (direct is None or int(direct[0], 16) != insn.target):
        return True
    return _NAMES.get(name, name) != insn.text.split()[0] and not _UNKNOWN.match(theirs)


@needs_binutils
def test_the_kernels_text_against_binutils() -> None:
    words = random.Random(1).sample(different_words(), samples(8_000, 400_000))
    found = disassembled(words)
    assert len(found) == len(words)
    for at, (word, theirs) in enumerate(zip(words, found, strict=True)):
        insns = AARCH64.decode(word, 4 * at)
        assert not differs(insns[0] if insns else None, theirs), f"{word[::-1].hex()} {theirs}, {insns}"
