"""Encode instructions: templates as in templates.py with registers by name, and branches to labels.

    D    op RT, RA, number        number(…)   of logical ones RT is the second operand, RA the destination: logical(…)
    X    op RT, RA, RB            plain(…)
    MD   op RA, RS, shift, mask   rotate(…)
    B    bc on a bit of CR        LabelBranch
    I    b, bl to an address      FarBranch
A program without a far branch is the same words at every address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gdb_optprobe.isa.base import OutOfReach
from gdb_optprobe.isa.codegen import Label, labels_among_words
from gdb_optprobe.isa.ppc64le.abi import GENERAL
from gdb_optprobe.isa.ppc64le.fields import BC, BO_ALWAYS, B, fits, signed, to_bytes
from gdb_optprobe.isa.ppc64le.templates import assembled

# Name: for keystone, and as capstone writes it.
_SOURCES = {
    "addi": ("li 0, 0", "li r0, 0"),  # with RA 0 that is li
    "addis": ("lis 0, 0", "lis r0, 0"),
    "mulli": ("mulli 0, 0, 0", "mulli r0, r0, 0"),
    "oris": ("oris 0, 0, 0", "oris r0, r0, 0"),
    "xoris": ("xoris 0, 0, 0", "xoris r0, r0, 0"),
    "ori": ("ori 0, 0, 0", "nop"),
    "xori": ("xori 0, 0, 0", "xnop"),
    "andi.": ("andi. 0, 0, 0", "andi. r0, r0, 0"),
    "andis.": ("andis. 0, 0, 0", "andis. r0, r0, 0"),
    "add": ("add 0, 0, 0", "add r0, r0, r0"),
    "subf": ("subf 0, 0, 0", "subf r0, r0, r0"),
    "mulld": ("mulld 0, 0, 0", "mulld r0, r0, r0"),
    "mulhdu": ("mulhdu 0, 0, 0", "mulhdu r0, r0, r0"),
    "divd": ("divd 0, 0, 0", "divd r0, r0, r0"),
    "divdu": ("divdu 0, 0, 0", "divdu r0, r0, r0"),
    "neg": ("neg 0, 0", "neg r0, r0"),
    "and": ("and 0, 0, 0", "and r0, r0, r0"),
    "and.": ("and. 0, 0, 0", "and. r0, r0, r0"),
    "or": ("or 0, 0, 0", "mr r0, r0"),
    "xor": ("xor 0, 0, 0", "xor r0, r0, r0"),
    "nor": ("nor 0, 0, 0", "nor r0, r0, r0"),
    "sld": ("sld 0, 0, 0", "sld r0, r0, r0"),
    "srd": ("srd 0, 0, 0", "srd r0, r0, r0"),
    "extsb": ("extsb 0, 0", "extsb r0, r0"),
    "extsh": ("extsh 0, 0", "extsh r0, r0"),
    "extsw": ("extsw 0, 0", "extsw r0, r0"),
    "cntlzd": ("cntlzd 0, 0", "cntlzd r0, r0"),
    "rldicl": ("rldicl 0, 0, 0, 0", "rotldi r0, r0, 0"),
    "rldicl.": ("rldicl. 0, 0, 0, 0", "rotldi. r0, r0, 0"),
    "rldicr": ("rldicr 0, 0, 0, 0", "rldicr r0, r0, 0, 0"),
    "rldimi": ("rldimi 0, 0, 0, 0", "rldimi r0, r0, 0, 0"),
    "cmpd": ("cmpd 0, 0", "cmpd r0, r0"),
    "cmpld": ("cmpld 0, 0", "cmpld r0, r0"),
    "cmpdi": ("cmpdi 0, 0", "cmpdi r0, 0"),
    "cmpldi": ("cmpldi 0, 0", "cmpldi r0, 0"),
    "isel": ("isel 0, 0, 0, 0", "isel r0, 0, r0, cr0lt"),
    "ldbrx": ("ldbrx 0, 0, 0", "ldbrx r0, 0, r0"),
    "lbz": ("lbz 0, 0(0)", "lbz r0, 0(0)"),
    "lhz": ("lhz 0, 0(0)", "lhz r0, 0(0)"),
    "lha": ("lha 0, 0(0)", "lha r0, 0(0)"),
    "lwz": ("lwz 0, 0(0)", "lwz r0, 0(0)"),
    "lwa": ("lwa 0, 0(0)", "lwa r0, 0(0)"),
    "ld": ("ld 0, 0(0)", "ld r0, 0(0)"),
    "stb": ("stb 0, 0(0)", "stb r0, 0(0)"),
    "sth": ("sth 0, 0(0)", "sth r0, 0(0)"),
    "stw": ("stw 0, 0(0)", "stw r0, 0(0)"),
    "std": ("std 0, 0(0)", "std r0, 0(0)"),
    "stdu": ("stdu 1, 0(1)", "stdu r1, 0(r1)"),
    "cmpb": ("cmpb 0, 0, 0", "cmpb r0, r0, r0"),
    "andc": ("andc 0, 0, 0", "andc r0, r0, r0"),
    "ldarx": ("ldarx 0, 0, 0", "ldarx r0, 0, r0"),
    "stdcx.": ("stdcx. 0, 0, 0", "stdcx. r0, 0, r0"),
    "lwsync": ("lwsync", "lwsync"),
    "mftb": ("mfspr 0, 268", "mfspr r0, 0x10c"),
    "mfxer": ("mfxer 0", "mfxer r0"),
    "mtctr": ("mtctr 0", "mtctr r0"),
    "mfctr": ("mfctr 0", "mfctr r0"),
    "mtlr": ("mtlr 0", "mtlr r0"),
    "mflr": ("mflr 0", "mflr r0"),
    "mfcr": ("mfcr 0", "mfcr r0"),
    "mtcr": ("mtcrf 255, 0", "mtcrf 0xff, r0"),
    "mfocrf": ("mfocrf 0, 128", "mfocrf r0, 0x80"),
    "mtocrf": ("mtocrf 128, 0", "mtocrf 0x80, r0"),
    "blr": ("blr", "blr"),
    "bctr": ("bctr", "bctr"),
    "bctrl": ("bctrl", "bctrl"),
    "mtxer": ("mtxer 0", "mtxer r0"),
    "mfmsr": ("mfmsr 0", "mfmsr r0"),
    "mtmsrd": ("mtmsrd 0, 1", "mtmsrd r0, 1"),
    "mtsrr0": ("mtspr 26, 0", "mtspr 0x1a, r0"),
    "mfsrr1": ("mfspr 0, 27", "mfspr r0, 0x1b"),
    "mtsprg2": ("mtspr 274, 0", "mtspr 0x112, r0"),
    "mfsprg2": ("mfspr 0, 274", "mfspr r0, 0x112"),
    "rfid": ("rfid", "rfid"),
    "mtppr": ("mtspr 896, 0", "mtspr 0x380, r0"),
    "mfpid": ("mfspr 0, 48", "mfpid r0"),
    "mcrf": ("mcrf 0, 0", "mcrf cr0, cr0"),
}  # fmt: skip
_FIRST_FIELD = 0x80 << 12  # FXM of mfocrf and mtocrf
_NUMBERS = {name: number for number, name in enumerate(GENERAL)}
NONE = "r0"  # as RA of an address or of addi: 0


@dataclass(frozen=True, slots=True)
class LabelBranch:
    """A branch to a label. bo: of bc, with the bit of CR that it tests; BO_ALWAYS for b. link: bl in place of b."""

    label: Label
    bo: int = BO_ALWAYS
    bit: int = 0
    link: bool = False


@dataclass(frozen=True, slots=True)
class FarBranch:
    """A branch out of the program, to an address. link: bl in place of b."""

    target: int
    link: bool = False


Item = int | Label | LabelBranch | FarBranch


@cache
def _templates() -> Mapping[str, int]:
    return assembled(_SOURCES)


def plain(name: str, first: str = "r0", second: str = "r0", third: str = "r0") -> int:
    """Encode an instruction with registers in the fields RT, RA and RB."""
    return _templates()[name] | _NUMBERS[first] << 21 | _NUMBERS[second] << 16 | _NUMBERS[third] << 11


def number(name: str, rt: str, ra: str, value: int) -> int:
    """Encode an instruction with a number: the low half, two's complement."""
    return plain(name, rt, ra) | value & 0xFFFF


def logical(name: str, to: str, left: str, right: str | int = "r0") -> int:
    """Encode an instruction with its destination in the field RA."""
    return number(name, left, to, right) if isinstance(right, int) else plain(name, left, to, right)


def rotate(name: str, to: str, source: str, shift: int, mask: int) -> int:
    """Encode a rotation. mask: its begin (rldicl, rldimi) or end (rldicr). Both numbers have one bit apart (1.6.1)."""
    return logical(name, to, source) | (shift & 31) << 11 | shift >> 5 << 1 | (mask & 31) << 6 | mask & 32


def compare(name: str, field: int, left: str, right: str | int) -> int:
    low = right & 0xFFFF if isinstance(right, int) else _NUMBERS[right] << 11
    return plain(name, "r0", left) | field << 23 | low


def select(to: str, where_set: str, otherwise: str, bit: int) -> int:
    """Encode isel. where_set: r0 means 0."""
    return plain("isel", to, where_set, otherwise) | bit << 6


def get_field(to: str, field: int) -> int:
    return plain("mfocrf", to) & ~_FIRST_FIELD | _FIRST_FIELD >> field


def set_field(field: int, source: str) -> int:
    return plain("mtocrf", source) & ~_FIRST_FIELD | _FIRST_FIELD >> field


def copy_field(to: int, source: int) -> int:
    return plain("mcrf") | to << 23 | source << 18


def encode_items(items: Sequence[Item], at: int = 0) -> bytes:
    """Return the code for an address. Raises OutOfReach."""
    labels = {label: offset for offset, label in labels_among_words(items)}
    words: list[int] = []
    for item in items:
        if isinstance(item, int):
            words.append(item)
        elif isinstance(item, LabelBranch):
            words.append(_encoded(item, 4 * len(words), labels[item.label]))
        elif isinstance(item, FarBranch):
            words.append(_branch(at + 4 * len(words), item.target, item.link))
    return to_bytes(*words)


def _branch(source: int, target: int, link: bool) -> int:
    offset = signed(target - source)
    if not fits(offset, 26):
        raise OutOfReach(source, target)
    return B << 26 | offset & 0x03FF_FFFC | link


def _encoded(jump: LabelBranch, source: int, target: int) -> int:
    if jump.bo == BO_ALWAYS:
        return _branch(source, target, jump.link)
    offset = target - source
    if not fits(offset, 16):
        raise OutOfReach(source, target)
    return BC << 26 | jump.bo << 21 | jump.bit << 16 | offset & 0xFFFC
