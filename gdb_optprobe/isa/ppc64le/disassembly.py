"""Disassemble instructions that capstone 5 does not know, and those that it spells wrongly.

Each line of `_TABLE`: mask, operands, then name:value of each instruction with these. An operand is a letter and the
lowest bit of its field: r general, R general with 0 for none, v vector, f floating point, s VSX, S pair of VSX, c CR
field, b CR bit, uN.W a number of W bits; and three kinds of memory. Checked against binutils' disassembler (tests).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

from gdb_optprobe.isa.ppc64le.fields import (
    BCTAR,
    BO_ALWAYS,
    CR_OPS,
    PREFIX_8LS,
    PREFIX_8RR,
    PREFIX_MLS,
    PREFIX_MRR,
    displacement34,
    is_pc_relative,
    opcode,
    prefix_type,
    ra,
    rb,
    rt,
    signed,
    suffix_of,
    word_of,
    xo,
)

CACHED = 1 << 16

_TABLE = """
ffffffff - rfscv:4c0000a4
fc00000f S21,dq(16) lxvp:18000000 stxvp:18000001
fc0007fe S21,R16,r11 lxvpx:7c00029a stxvpx:7c00039a
fc6007ff c23,f16,f11 fcmpo:fc000040
fc7f07fd c23,s11 xvtlsbb:f002076c
fc6007ff c23,v16,v11 vcmpuq:10000101 vcmpsq:10000141
fc0007ff f21,f16,f11 fmrgow:fc00068c fmrgew:fc00078c
ffff07ff r11 msgsndp:7c00011c msgclrp:7c00015c msgsnd:7c00019c msgclr:7c0001dc
fc1007ff r11,r21,u18.2,u17.1,u16.1 tlbiel:7c000224 tlbie:7c000264
fc00ffff r16,r21 prtyw:7c000134 brw:7c000136 prtyd:7c000174 brd:7c000176 brh:7c0001b6 cdtbcd:7c000234
fc00ffff r16,r21 cbcdtd:7c000274
fc0007ff r16,r21,r11 cntlzdm:7c000076 pdepd:7c000138 pextd:7c000178 cfuged:7c0001b8 cnttzdm:7c000476
fc0007ff r21,R16,r11 lswx:7c00042a stswx:7c00052a
fe3087fe r21,R16,r11,u0.1 lqarx:7e000228
fc00ffff r21,b16 setbc:7c000300 setbcr:7c000340 setnbc:7c000380 setnbcr:7c0003c0
fc200000 r21,dq(16) lq:e0000000
fc200003 r21,ds(16) stq:f8000002
fc1f07ff r21,r11 slbfee.:7c0007a7
ff1fffff u21.3 slbia:7c0003e4
fc1e07ff r21,r11,u16.1 slbmfee:7c000726
fc00ffff r21,r16 nego:7c0004d0 nego.:7c0004d1 subfzeo:7c000590 subfzeo.:7c000591 addzeo:7c000594
fc00ffff r21,r16 addzeo.:7c000595 subfmeo:7c0005d0 subfmeo.:7c0005d1 addmeo:7c0005d4 addmeo.:7c0005d5
fc0007ff r21,r16,r11 addg6s:7c000094 subfco:7c000410 subfco.:7c000411 addco:7c000414 addco.:7c000415
fc0007ff r21,r16,r11 subfo:7c000450 subfo.:7c000451 subfeo:7c000510 subfeo.:7c000511 addeo:7c000514
fc0007ff r21,r16,r11 addeo.:7c000515 mulldo:7c0005d2 mulldo.:7c0005d3 mullwo:7c0005d6 mullwo.:7c0005d7
fc0007ff r21,r16,r11 addo:7c000614 addo.:7c000615 divdeuo:7c000712 divdeuo.:7c000713 divweuo:7c000716
fc0007ff r21,r16,r11 divweuo.:7c000717 divdeo:7c000752 divdeo.:7c000753 divweo:7c000756 divweo.:7c000757
fc0007ff r21,r16,r11 divduo:7c000792 divduo.:7c000793 divwuo:7c000796 divwuo.:7c000797 divdo:7c0007d2
fc0007ff r21,r16,r11 divdo.:7c0007d3 divwo:7c0007d6 divwo.:7c0007d7
fc2007ff r21,R16,r11 stqcx.:7c00016d
fc00003e r21,R16,r11,b6 isel:7c00001e
fc0001ff r21,r16,r11,u9.2 addex:7c000154
fc0007ff r21,v11,u16.3 vgnb:100004cc
fc0007fe s21,R16,r11 lxvrbx:7c00001a lxvrhx:7c00005a lxvrdx:7c0000da stxvrbx:7c00011a stxvrhx:7c00015a
fc0007fe s21,R16,r11 stxvrdx:7c0001da lxvrwx:7c00009a stxvrwx:7c00019a
fc1f07fe s21,u11.5 lxvkq:f01f02d0
fc0007fe s21,v11,u16.5 xxgenpcvbm:f0000728 xxgenpcvhm:f000072a xxgenpcvwm:f0000768 xxgenpcvdm:f000076a
fc0001ff u16.1,v21,v11,u9.2 xsrqpi:fc00000a xsrqpix:fc00000b xsrqpxp:fc00004a
ff1cffff u21.3,u16.2 sync:7c0004ac
fc1fffff u21.5 mtfsb1.:fc00004d mtfsb0.:fc00008d
ffff0003 u5.7 scv:44000001
fc1007ff v21,r11,u16.4 vinsw:100000cf vinsd:100001cf
fc0007ff v21,r16,r11 vinsblx:1000020f vinshlx:1000024f vinswlx:1000028f vinsdlx:100002cf vinsbrx:1000030f
fc0007ff v21,r16,r11 vinshrx:1000034f vinswrx:1000038f vinsdrx:100003cf
fc0007ff v21,r16,v11 vinsbvlx:1000000f vinshvlx:1000004f vinswvlx:1000008f vinsbvrx:1000010f
fc0007ff v21,r16,v11 vinshvrx:1000014f vinswvrx:1000018f
fc0007ff v21,v16,r11 vclrlb:1000018d vclrrb:100001cd
fc0007ff v21,v16,v11 vrlq:10000005 vdivuq:1000000b vrlqmi:10000045 vdivuw:1000008b vmuloud:100000c8
fc0007ff v21,v16,v11 vdivud:100000cb vslq:10000105 vdivsq:1000010b vrlqnm:10000145 vdivsw:1000018b
fc0007ff v21,v16,v11 vcmpequq:100001c7 vmulosd:100001c8 vmulld:100001c9 vdivsd:100001cb vsrq:10000205
fc0007ff v21,v16,v11 vdiveuq:1000020b vcmpgtuq:10000287 vmulhuw:10000289 vdiveuw:1000028b vmuleud:100002c8
fc0007ff v21,v16,v11 vmulhud:100002c9 vdiveud:100002cb vsraq:10000305 vdivesq:1000030b vcmpgtsq:10000387
fc0007ff v21,v16,v11 vmulhsw:10000389 vdivesw:1000038b vmulesd:100003c8 vmulhsd:100003c9 vdivesd:100003cb
fc0007ff v21,v16,v11 vcfuged:1000054d vpextd:1000058d vcmpequq.:100005c7 vpdepd:100005cd vmoduq:1000060b
fc0007ff v21,v16,v11 vcmpgtuq.:10000687 vmoduw:1000068b vmodud:100006cb vmodsq:1000070b vclzdm:10000784
fc0007ff v21,v16,v11 vcmpgtsq.:10000787 vmodsw:1000078b vctzdm:100007c4 vmodsd:100007cb xscmpeqqp:fc000088
fc0007ff v21,v16,v11 xscmpgeqp:fc000188 xscmpgtqp:fc0001c8 xsmaxcqp:fc000548 xsmincqp:fc0005c8
fc00003f v21,v16,v11,r6 vextdubvlx:10000018 vextdubvrx:10000019 vextduhvlx:1000001a vextduhvrx:1000001b
fc00003f v21,v16,v11,r6 vextduwvlx:1000001c vextduwvrx:1000001d vextddvlx:1000001e vextddvrx:1000001f
fc00063f v21,v16,v11,u6.3 vsldbi:10000016 vsrdbi:10000216
fc0005ff v21,v16,v11,u9.1 bcdadd.:10000401 bcdsub.:10000441
fc00003f v21,v16,v11,v6 vmsumcud:10000017 vmsumudm:10000023
fc0007fe r11,hash hashst:7c0005a4 hashchk:7c0005e4 hashstp:7c000524 hashchkp:7c000564
fc00003e v21 mtvsrbmi:10000014
fc1f07ff v21,v11 vexpandbm:10000642 vexpandhm:10010642 vexpandwm:10020642 vexpanddm:10030642 vexpandqm:10040642
fc1f07ff r21,v11 vextractbm:10080642 vextracthm:10090642 vextractwm:100a0642 vextractdm:100b0642
fc1f07ff r21,v11 vextractqm:100c0642
fc1f07ff v21,r11 mtvsrbm:10100642 mtvsrhm:10110642 mtvsrwm:10120642 mtvsrdm:10130642 mtvsrqm:10140642
fc1e07ff r21,v11,u16.1 vcntmbb:10180642 vcntmbh:101a0642 vcntmbw:101c0642 vcntmbd:101e0642
fc1f07ff v21,v11 vstribl:1000000d vstribr:1001000d vstrihl:1002000d vstrihr:1003000d xscvqpuqz:fc000688
fc1f07ff v21,v11 vstribl.:1000040d vstribr.:1001040d vstrihl.:1002040d vstrihr.:1003040d
"""


@cache
def _by_opcode() -> dict[int, tuple[tuple[int, int, str, str], ...]]:
    """Return (mask, value, name, operands) by primary opcode."""
    found: dict[int, list[tuple[int, int, str, str]]] = {}
    for line in _TABLE.split("\n"):
        if not line:
            continue
        mask, operands, *names = line.split()
        for name, value in (item.split(":") for item in names):
            entry = (int(mask, 16), int(value, 16), name, operands)
            found.setdefault(entry[1] >> 26, []).append(entry)
    return {op: tuple(entries) for op, entries in found.items()}


@lru_cache(CACHED)
def disassemble(word: int) -> str:
    """Return the assembler text of a one-word instruction; "" if the table does not have it."""
    if opcode(word) == CR_OPS and xo(word) == BCTAR:
        return _bctar(word)
    for mask, value, name, operands in _by_opcode().get(opcode(word), ()):
        if word & mask == value:
            shown = ", ".join(_operand(operand, word) for operand in _split(operands))
            return f"{name} {shown}" if shown else name
    return ""


def _split(operands: str) -> list[str]:
    return [] if operands == "-" else operands.split(",")


def _bctar(word: int) -> str:
    name = "bctarl" if word & 1 else "bctar"
    return name if rt(word) & BO_ALWAYS == BO_ALWAYS else f"{name} {rt(word)}, {cr_bit(ra(word))}"


def cr_bit(number: int) -> str:
    name = ("lt", "gt", "eq", "so")[number & 3]
    return name if number < 4 else f"4*cr{number >> 2}+{name}"


def _base(word: int) -> str:
    return f"r{ra(word)}" if ra(word) else "0"


def _operand(spec: str, word: int) -> str:
    match spec:
        case "dq(16)":
            return f"{signed(word & 0xFFF0, 16):#x}({_base(word)})"
        case "ds(16)":
            return f"{signed(word & 0xFFFC, 16):#x}({_base(word)})"
        case "hash":
            return f"{(rt(word) << 3 | (word & 1) << 8) - 512:#x}({_base(word)})"
    kind, _, width = spec[1:].partition(".")
    low = int(kind)
    field = word >> low & 31
    match spec[0]:
        case "u":
            return str(word >> low & (1 << int(width)) - 1)
        case "R":
            return f"r{field}" if field else "0"
        case "s":
            return f"vs{field | (word >> (0 if low == 21 else 1) & 1) << 5}"
        case "S":
            return f"vs{(field & 30) | (field & 1) << 5}"
        case "c":
            return f"cr{word >> low & 7}"
        case "b":
            return cr_bit(field)
    return f"{spec[0]}{field}"


# By the suffix's primary opcode: Book I, 1.6.3, and appendix "Opcode Maps".
_MLS = {
    14: "paddi", 32: "plwz", 34: "plbz", 36: "pstw", 38: "pstb", 40: "plhz", 42: "plha", 44: "psth", 48: "plfs",
    50: "plfd", 52: "pstfs", 54: "pstfd",
}  # fmt: skip
_8LS = {
    41: "plwa", 42: "plxsd", 43: "plxssp", 46: "pstxsd", 47: "pstxssp", 50: "plxv", 51: "plxv", 54: "pstxv",
    55: "pstxv", 56: "plq", 57: "pld", 58: "plxvp", 60: "pstq", 61: "pstd", 62: "pstxvp",
}  # fmt: skip
_XXEVAL = {0: "xxpermx", 1: "xxeval"}
_XXBLEND = ("xxblendvb", "xxblendvh", "xxblendvw", "xxblendvd")
_XXSPLT = {0: "xxsplti32dx", 1: "xxsplti32dx", 2: "xxspltidp", 3: "xxspltiw"}
_GER = {
    35: "pmxvi4ger8", 34: "pmxvi4ger8pp", 99: "pmxvi8ger4spp", 75: "pmxvi16ger2", 107: "pmxvi16ger2pp",
    43: "pmxvi16ger2s", 42: "pmxvi16ger2spp", 51: "pmxvbf16ger2", 50: "pmxvbf16ger2pp", 178: "pmxvbf16ger2pn",
    114: "pmxvbf16ger2np", 242: "pmxvbf16ger2nn", 19: "pmxvf16ger2", 18: "pmxvf16ger2pp", 146: "pmxvf16ger2pn",
    82: "pmxvf16ger2np", 210: "pmxvf16ger2nn", 27: "pmxvf32ger", 26: "pmxvf32gerpp", 154: "pmxvf32gerpn",
    90: "pmxvf32gernp", 218: "pmxvf32gernn", 59: "pmxvf64ger", 58: "pmxvf64gerpp", 186: "pmxvf64gerpn",
    122: "pmxvf64gernp", 250: "pmxvf64gernn", 3: "pmxvi8ger4", 2: "pmxvi8ger4pp",
}  # fmt: skip


@lru_cache(CACHED)
def prefixed_text(data: bytes) -> str:
    """Return the assembler text of a prefixed instruction; "" if the eight bytes are none."""
    return _PREFIXED[prefix_type(word_of(data))](data)


def _d_form(data: bytes, names: dict[int, str]) -> str:
    prefix, suffix = word_of(data), suffix_of(data)
    name, relative = names.get(opcode(suffix), ""), is_pc_relative(data)
    if not name or prefix & 0x00EC_0000 or (relative and ra(suffix)):
        return ""
    kind, number = ("r", rt(suffix))
    if name in ("plfs", "plfd", "pstfs", "pstfd"):
        kind = "f"
    elif name in ("plxsd", "plxssp", "pstxsd", "pstxssp"):
        kind = "v"
    elif name in ("plxv", "pstxv"):
        kind, number = "vs", rt(suffix) | (opcode(suffix) & 1) << 5
    elif name in ("plq", "pstq"):
        number &= 30  # of a pair the first
    elif name in ("plxvp", "pstxvp"):
        kind, number = "vs", rt(suffix) & 30 | (rt(suffix) & 1) << 5
    base, ending = _base(suffix), ", 1" if relative else ""
    if name == "paddi":
        return f"paddi {kind}{number}, {base}, {displacement34(data):#x}{ending}"
    return f"{name} {kind}{number}, {displacement34(data):#x}({base}){ending}"


def _8rr(data: bytes) -> str:
    prefix, suffix = word_of(data), suffix_of(data)
    if prefix & 0x00F0_0000:
        return ""
    immediate = (prefix & 0xFFFF) << 16 | suffix & 0xFFFF
    match opcode(suffix):
        case 32:
            name, target = _XXSPLT.get(suffix >> 17 & 15), f"vs{rt(suffix) | (suffix >> 16 & 1) << 5}"
            return f"{name} {target}, {immediate:#x}" if name else ""
        case 33:
            return f"{_XXBLEND[suffix >> 4 & 3]} {_four(suffix)}"
        case 34:
            name = _XXEVAL.get(suffix >> 4 & 3)
            return f"{name} {_four(suffix)}, {prefix & 255}" if name else ""
    return ""


def _four(suffix: int) -> str:
    """Return XT, XA, XB, XC of the 8RR:XX4-form."""
    xc = suffix >> 6 & 31
    registers = (
        (rt(suffix), suffix & 1), (ra(suffix), suffix >> 2 & 1), (rb(suffix), suffix >> 1 & 1), (xc, suffix >> 3 & 1)
    )  # fmt: skip
    return ", ".join(f"vs{low | high << 5}" for low, high in registers)


def _mrr(data: bytes) -> str:
    prefix, suffix = word_of(data), suffix_of(data)
    if prefix == 0x0700_0000:
        return "pnop"
    name = _GER.get(suffix >> 3 & 0xFF)
    if opcode(suffix) != 59 or prefix >> 20 & 15 != 9 or name is None:
        return ""
    xa, xb = ra(suffix) | (suffix >> 2 & 1) << 5, rb(suffix) | (suffix >> 1 & 1) << 5
    return f"{name} a{suffix >> 23 & 7}, vs{xa}, vs{xb}, {prefix & 0xFFFF:#x}"


_PREFIXED: dict[int, Callable[[bytes], str]] = {
    PREFIX_8LS: lambda data: _d_form(data, _8LS),
    PREFIX_8RR: _8rr,
    PREFIX_MLS: lambda data: _d_form(data, _MLS),
    PREFIX_MRR: _mrr,
}
