"""What is an instruction, where it goes and what it is called, against binutils."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest

from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.isa.ppc64le.decoder import PIECE
from gdb_optprobe.isa.ppc64le.disassembly import disassemble, prefixed_text
from tests.examples import samples

from .binutils import decode_each, disassembled, needs_binutils, words
from .kernel import kernel

HERE = 0xC000_0000_0001_0000


@pytest.mark.parametrize(
    "word, flow, target",
    [
        (0x48000010, Flow.JUMP, HERE + 0x10),
        (0x4BFFFFF0, Flow.JUMP, HERE - 0x10),
        (0x48000012, Flow.JUMP, 0x10),  # ba
        (0x4BFFFFF2, Flow.JUMP, 0xFFFF_FFFF_FFFF_FFF0),
        (0x48000011, Flow.CALL, HERE + 0x10),
        (0x41820010, Flow.BRANCH, HERE + 0x10),
        (0x4182FFF2, Flow.BRANCH, 0xFFFF_FFFF_FFFF_FFF0),  # beqa
        (0x4200FFF0, Flow.BRANCH, HERE - 0x10),  # bdnz
        (0x41820011, Flow.CALL, HERE + 0x10),  # beql
        (0x42800010, Flow.JUMP, HERE + 0x10),  # bc 20
        (0x429F0005, Flow.NEXT, None),  # bcl 20,31,$+4
        (0x429F0009, Flow.CALL, HERE + 8),
        (0x4E800020, Flow.RETURN, None),
        (0x4D820020, Flow.BRANCH, None),  # beqlr
        (0x4E800021, Flow.INDIRECT_CALL, None),
        (0x4D820021, Flow.INDIRECT_CALL, None),  # beqlrl
        (0x4E800420, Flow.INDIRECT_JUMP, None),
        (0x4E800421, Flow.INDIRECT_CALL, None),
        (0x4D820420, Flow.BRANCH, None),  # beqctr
        (0x4E800460, Flow.INDIRECT_JUMP, None),  # bctar
        (0x4E800461, Flow.INDIRECT_CALL, None),
        (0x7FE00008, Flow.TRAP, None),
        (0x0FE00000, Flow.TRAP, None),  # BUG()
        (0x7D821008, Flow.TRAP, None),  # tw 12,2,2: always
        (0x7D821808, Flow.NEXT, None),  # tw 12,2,3: not always
        (0x0B030000, Flow.NEXT, None),  # tdnei: WARN_ON
        (0x44000002, Flow.SYSTEM, None),  # sc
        (0x44000001, Flow.SYSTEM, None),  # scv
        (0x4C000024, Flow.SYSTEM, None),  # rfid
        (0x4C0000A4, Flow.SYSTEM, None),  # rfscv
        (0x4C000224, Flow.SYSTEM, None),  # hrfid
        (0x7C000164, Flow.SYSTEM, None),  # mtmsrd
        (0x7C010164, Flow.SYSTEM, None),  # mtmsrd with L
        (0x7C000124, Flow.SYSTEM, None),  # mtmsr
        (0x4C0002E4, Flow.SYSTEM, None),  # stop
        (0x4C00012C, Flow.NEXT, None),  # isync
        (0x4C400004, Flow.NEXT, None),  # addpcis
        (0xF821FF81, Flow.NEXT, None),  # stdu
        (0x60000000, Flow.NEXT, None),
    ],
)
def test_flow_and_target(word: int, flow: Flow, target: int | None) -> None:
    insn, *rest = PPC64LE.decode(words([word]), HERE)
    assert not rest and (insn.flow, insn.target) == (flow, target)


@pytest.mark.parametrize("word, goes_on", [(0x4E800020, False), (0x4D820020, True), (0x4E800421, True), (0x48, False)])
def test_falls_through(word: int, goes_on: bool) -> None:
    insns = PPC64LE.decode(words([word]), HERE)
    assert [insn.falls_through for insn in insns] == ([goes_on] if word != 0x48 else [])


def test_sweep_ends_before_what_is_no_instruction_or_is_cut() -> None:
    nop = words([0x60000000])
    assert len(PPC64LE.decode(nop + words([0]) + nop, HERE)) == 1
    assert len(PPC64LE.decode(nop + nop[:3], HERE)) == 1
    assert len(PPC64LE.decode(nop + words([0x06000000]), HERE)) == 1  # a prefix alone
    assert len(PPC64LE.decode(nop + words([0x06000000, 0x06000000]), HERE)) == 1
    assert PPC64LE.decode(b"", HERE) == []


def test_pieces_meet() -> None:
    data = words([0x3C4C0241, 0x7C0802A6, 0x04100001, 0xE4600010, 0x7C6401B6, 0x48000010]) * (PIECE // 20)
    insns = PPC64LE.decode(data, HERE)
    assert insns[-1].end == HERE + len(data) and len(data) > PIECE
    assert all(here.end == there.address for here, there in pairwise(insns))
    assert insns[-1].target == insns[-1].address + 0x10


@pytest.mark.parametrize(
    "data, text",
    [
        ((0x7C6401B6,), "brh r4, r3"),
        ((0x7C640136,), "brw r4, r3"),
        ((0x7C640176,), "brd r4, r3"),
        ((0x4E800460,), "bctar"),
        ((0x44000001,), "scv 0"),
        ((0x4C0000A4,), "rfscv"),
        ((0x429F0005,), "bcl 20, 4*cr7+so, $+4"),
        ((0x04100001, 0xE4600010), "pld r3, 0x10010(0), 1"),
        ((0x06000000, 0x38650001), "paddi r3, r5, 0x1"),
        ((0x0603FFFF, 0x3865FFFF), "paddi r3, r5, -0x1"),
        ((0x07000000, 0x00000000), "pnop"),
    ],
)
def test_texts_that_capstone_does_not_know(data: tuple[int, ...], text: str) -> None:
    assert [insn.text for insn in PPC64LE.decode(words(data), HERE)] == [text]


# Against binutils

_ALWAYS_31 = {"mtmsr", "mtmsrd"}
_SYSTEM = {"sc", "scv", "rfid", "rfscv", "hrfid", "rfebb", "stop", "nap", "doze", "sleep", "rvwinkle"} | _ALWAYS_31


def flow_by_binutils(text: str) -> tuple[set[Flow], int | None]:
    """From its raw texts: `bc 12,eq,1234`, `bclr 20,lt,0`, `tdi 24,r3,0`."""
    name, _, rest = text.partition(" ")
    operands = rest.strip().split(",")
    links = name.rstrip("+-a").endswith("l")
    if name in _SYSTEM:
        return {Flow.SYSTEM}, None
    if name in ("tw", "td", "twi", "tdi"):
        return ({Flow.TRAP} if operands[0] == "31" else {Flow.NEXT, Flow.TRAP}), None
    if name in ("b", "ba", "bl", "bla"):
        return {Flow.CALL if "l" in name else Flow.JUMP}, int(operands[0], 16)
    always = int(operands[0]) & 20 == 20 if name.startswith("bc") and operands[0].isdigit() else False
    if re.fullmatch(r"bcl?a?[+-]?", name):
        return {Flow.CALL} if links else {Flow.JUMP if always else Flow.BRANCH}, int(operands[2], 16)
    if re.fullmatch(r"bc(lr|ctr|tar)l?", name):
        if links and name != "bclr":
            return {Flow.INDIRECT_CALL}, None
        ends = Flow.RETURN if name == "bclr" else Flow.INDIRECT_JUMP
        return {ends if always else Flow.BRANCH}, None
    return {Flow.NEXT}, None


def agrees(insn: Insn, text: str) -> bool:
    if insn.data == words([0x429F0005]):
        return text.startswith("bcl")
    flows, target = flow_by_binutils(text)
    if "a" in text.split()[0] and insn.target is not None and target is not None:
        return insn.flow in flows and insn.target & 0xFFFF_FFFF == target  # it shows absolute ones so
    return insn.flow in flows and insn.target == target


def random_words(rng: random.Random, count: int) -> list[int]:
    """Every primary opcode, and those with extended opcodes more often, with fields that are often zero."""
    found = []
    for _ in range(count):
        opcode = rng.choice((*range(64), 4, 19, 31, 31, 31, 16, 18, 60, 63))
        fields = [rng.choice((0, rng.getrandbits(5))) for _ in range(3)]
        found.append(opcode << 26 | fields[0] << 21 | fields[1] << 16 | fields[2] << 11 | rng.getrandbits(11))
    return [word for word in found if word >> 26 != 1]


# Instructions of ISAs that Linux does not run on, decimal floating point, and those capstone refuses reserved bits of.
_LEFT_OUT = re.compile(
    r"(dmx|d(add|mul|sub|div|cmp|tst|ct|cf|qua|rr|rint|rsp|rdpq|dedpd|enbcd|xex|iex|scl|scr)|dss|dst|mtsle|mtsrd|rmieg"
    r"|pbt|icswx|urfid|slbiag|eciwx|ecowx|msgsndu|msgclru|icbt|cmp[dlw]+i?$|cmpl?i?$|bcds|xvcvbf16|xvtlsbb|slbm|tlbie"
    r"|rlw|attn|slbie|xxmfacc|xxmtacc|xxsetaccz|vgnb|vcmp[us]q|mtfsb|fcmpo|sync|bcl?a?[+-]?$|sc$|lq|stq)"
)


@needs_binutils
@pytest.mark.thorough
def test_random_words_against_binutils() -> None:
    numbers = random_words(random.Random(1), 40_000)
    data = words(numbers)
    theirs = disassembled(data, HERE)
    unknown, wrong, known = [], [], 0
    for insn, word, at in zip(decode_each(data, HERE), numbers, range(HERE, HERE + len(data), 4), strict=True):
        text = theirs[at][1]
        if text.startswith(".long"):
            continue
        if insn is None:
            unknown += [f"{word:08x} {text}"] if not _LEFT_OUT.match(text.split()[0]) else []
            continue
        known += 1
        if not agrees(insn, text):
            wrong.append(f"{word:08x} {text} is {insn.text}: {insn.flow} {insn.target}")
    assert not wrong and not unknown
    assert known > 25_000


def normal(text: str) -> str:
    """Numbers in one way."""
    return re.sub(r"(?<![\w.])-?(0x[0-9a-f]+|\d+)", lambda n: str(int(n[0], 0)), text.replace(" ", ""))


@needs_binutils
@pytest.mark.thorough
def test_texts_of_ours_against_binutils() -> None:
    rng = random.Random(2)
    numbers = [word for word in random_words(rng, 200_000) if disassemble(word)]
    # A word that capstone knows too is not spelled by us; binutils may leave out what is 0 or call it something else.
    theirs = disassembled(words(numbers))
    compared = [(word, theirs[4 * i][1]) for i, word in enumerate(numbers)]
    different = [
        f"{word:08x}: {disassemble(word)}, {text}"
        for word, text in compared
        if text.split()[0] == disassemble(word).split()[0] and normal(disassemble(word)) != normal(text)
        if not text.startswith(("bctar", "mtvsrbmi"))
    ]
    renamed = {(disassemble(word).split()[0], text.split()[0]) for word, text in compared}
    assert not different
    assert {ours for ours, theirs in renamed if ours != theirs and theirs != ".long"} <= {"sync", "tlbiel", "tlbie"}
    assert len(numbers) > 2_000


def random_prefixed(rng: random.Random) -> list[int]:
    kind, relative = rng.choice((0, 0, 1, 2, 2, 3)), rng.choice((0, 1))
    if kind in (0, 2):
        suffix = rng.randrange(14, 64) << 26 | rng.getrandbits(26)
        suffix &= ~(31 << 16) if relative else -1
        return [1 << 26 | kind << 24 | relative << 20 | rng.getrandbits(18), suffix]
    if kind == 1:
        return [1 << 26 | 1 << 24 | rng.getrandbits(16), rng.choice((32, 33, 34)) << 26 | rng.getrandbits(26)]
    return [0x07900000 | rng.getrandbits(16), 59 << 26 | rng.getrandbits(26) & ~0x600001]


@needs_binutils
def test_prefixed_instructions_against_binutils() -> None:
    rng = random.Random(3)
    pairs = [random_prefixed(rng) for _ in range(20_000)]
    wrong, known = [], set()
    theirs = disassembled(b"".join(words(pair) + words([0x60000000, 0x60000000]) for pair in pairs))
    for index, pair in enumerate(pairs):
        size, text = theirs[16 * index]
        text = re.sub(r",0$", "", text) if text.startswith("p") and not text.startswith("pm") else text
        text = text.replace("pmdmx", "pmx")  # its name in binutils 2.40
        ours = prefixed_text(words(pair))
        if (size == 8) != bool(ours):
            # binutils wants every reserved bit, and accumulators apart from their own vectors
            wrong += [f"{pair[0]:08x} {pair[1]:08x}: '{ours}' and '{text}'"] if size == 8 else []
        elif ours:
            known.add(text.split()[0])
            same = normal(ours) == normal(text) or text.startswith(("pm", "xx"))
            if ours.split()[0] != text.split()[0] or not same:
                wrong.append(f"{pair[0]:08x} {pair[1]:08x}: '{ours}' and '{text}'")
    assert not wrong
    assert len(known) > 30


@needs_binutils
def test_the_kernels_text_against_binutils() -> None:
    found = kernel()
    rng = random.Random(4)
    wrong, seen = [], 0
    chosen = rng.sample(found.functions, samples(600))
    for start, size in chosen:
        theirs = disassembled(found.code(start, size), start)
        ours = found.function(start, size)
        for at, (length, text) in theirs.items():
            insn = ours.get(at)
            if text.startswith(".long"):
                continue
            seen += 1
            if insn is None or insn.size != length or (length == 4 and not agrees(insn, text)):
                wrong.append(f"{at:#x} {text}: {insn}")
    assert not wrong and seen > 30 * len(chosen)
