"""What runs at a trap in a user's program, under qemu-ppc64le: registers are saved, changed as the instruction under it
would, and back; and copies of instructions.

User mode has no SRR0 and MSR: words of the paca stand for them, and a trap for `rfid`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from gdb_optprobe.guest.linux.arch.ppc64le.user_traps import MSR, OFFSETS, Place, PowerUser
from gdb_optprobe.handlers.lower_mapped_file import FilePageOffsets
from gdb_optprobe.handlers.lower_traps import PlacedTrapTable
from gdb_optprobe.handlers.lower_user_traps import lower_user_trap_handler
from gdb_optprobe.isa.base import Flow, Insn, Unrelocatable
from gdb_optprobe.isa.codegen import Comparison, Label
from gdb_optprobe.isa.ppc64le import PPC64LE, abi, emulator
from gdb_optprobe.isa.ppc64le.encodings import Item, compare, encode_items, number, plain
from gdb_optprobe.isa.ppc64le.fields import rotated, to_bytes, word_of
from gdb_optprobe.isa.ppc64le.templates import load
from gdb_optprobe.isa.ppc64le.value_codegen import branch_if
from gdb_optprobe.maps.trap_table import USER_KEY, Key, TrapTableLayout
from tests.isa.ppc64le.oracle import DATA, DATA_SIZE, HERE, MASK, SIGTRAP, TRAP, execute, needs_oracle

pytestmark = needs_oracle

PACA, FRAME, REGS, KSAVE, KERNELS = DATA + 0x2000, DATA + 0x6000, 112, 0x910, HERE + 0x1000
SRR0, MACHINE, PPR = 0x300, 0x318, 0x320
SAVED = {name: 0x80 + 8 * at for at, name in enumerate((abi.CTR, "r9", "r10", "r11", "r12", "r13"))}
STACK = Insn(KERNELS, to_bytes(number("ld", "r1", "r13", KSAVE)), "", Flow.NEXT)
PRIORITY = 0xC0
USER = PowerUser(Place(STACK, REGS, SAVED, PRIORITY))
USERS_MSR = 0x8000_0000_0000_D033
IN_USER_MODE = {
    plain("mtmsrd", "r9"): number("std", "r9", "r13", MACHINE),
    plain("mtsrr0", "r9"): number("std", "r9", "r13", SRR0),
    plain("mtppr", "r9"): number("std", "r9", "r13", PPR),
    plain("rfid"): TRAP,
}
PRISTINE = b"".join(struct.pack("<Q", rotated(at * -0x61C8_864F, 29)) for at in range(DATA, DATA + DATA_SIZE, 8))
"""As oracle.s fills it."""


@dataclass(frozen=True)
class After:
    """registers: all, the PC that is gone on at among them. memory: by address, words that were changed."""

    registers: Mapping[str, int]
    memory: Mapping[int, int]


def random_registers(seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    found = {name: rng.choice((rng.getrandbits(64), rng.getrandbits(16), 0, MASK)) for name in abi.GENERAL}
    found |= {abi.LR: rng.getrandbits(64), abi.CTR: rng.choice((0, 1, 2, rng.getrandbits(64)))}
    return found | {abi.FLAGS: rng.getrandbits(32), abi.XER: rng.getrandbits(32) & 0xE00C_007F}


def ran(code: bytes, now: Mapping[str, int], words: Mapping[int, int]) -> After:
    """From HERE until a trap. words: of memory."""
    spelled = [word_of(code[i : i + 4]) for i in range(0, len(code), 4)]
    code = to_bytes(*(IN_USER_MODE.get(word, word) for word in spelled))
    patches = [(HERE + i, code[i : i + 4]) for i in range(0, len(code), 4)]
    for at, word in words.items():
        patches += [(at, struct.pack("<I", word & 0xFFFF_FFFF)), (at + 4, struct.pack("<I", word >> 32))]
    (left,) = execute([({**now, abi.PC: HERE}, patches)], room=512)
    assert left.signal == SIGTRAP
    return After(left.registers, left.memory)


def framed(registers: Mapping[str, int], pc: int) -> dict[int, int]:
    """The frame in memory, as it is when registers have been saved."""
    words = {name: registers[name] for name in (*abi.GENERAL, abi.LR, abi.CTR, abi.XER, abi.FLAGS)}
    return {FRAME + REGS + OFFSETS[name]: word for name, word in (words | {abi.PC: pc, MSR: USERS_MSR}).items()}


def emulated(insn: Insn, before: Mapping[str, int]) -> dict[str, int]:
    """All registers behind it."""
    found = USER.emulation(insn, 64, 0)
    assert found is not None and not found.may_fail
    # r13 is the paca's while the code runs: what stands for SRR0 is where the user's points to.
    after = ran(found.code(HERE), {"r1": FRAME, "r13": PACA}, framed(before, insn.address))
    saved = after.memory.get(PACA + SRR0, struct.unpack_from("<Q", PRISTINE, PACA + SRR0 - DATA)[0])
    return {name: after.registers[name] for name in before} | {abi.PC: saved}


LINKING = ("bl", "bcl", "bclrl", "bcctrl")
KINDS = ("b", "bc", "bclr", "bcctr", *LINKING, "addi", "addis", "mr", "or", "mfspr", "mtspr", "nop")
TESTS = (4, 12, 6, 15, 16, 18, 0, 2, 8, 10, 20)


def word(kind: str, rng: random.Random) -> int:
    """An instruction of that kind, at random. bo: of bcctr, CTR cannot be both (Book I, 2.4)."""
    one, two, three = rng.sample(range(32), 3)
    link, bo, number = kind in LINKING, rng.choice(TESTS), rng.getrandbits(16)
    match kind:
        case "b" | "bl":
            return 18 << 26 | rng.choice((4, 0x100, 0x1FF_FFFC, 0x200_0000, 0x3FF_FFFC, 0xFFFC)) | link
        case "bc" | "bcl":
            return 16 << 26 | bo << 21 | one << 16 | rng.choice((4, 8, 0x7FFC, 0x8000, 0xFFFC)) | link
        case "bclr" | "bclrl":
            return 19 << 26 | bo << 21 | one << 16 | 16 << 1 | link
        case "bcctr" | "bcctrl":
            return 19 << 26 | (bo | 4) << 21 | one << 16 | 528 << 1 | link
        case "addi" | "addis":
            return (14 if kind == "addi" else 15) << 26 | one << 21 | two << 16 | number
        case "mr" | "or":
            return 31 << 26 | one << 21 | two << 16 | (one if kind == "mr" else three) << 11 | 444 << 1
        case "mfspr" | "mtspr":
            return 31 << 26 | one << 21 | rng.choice((8, 9)) << 16 | (339 if kind == "mfspr" else 467) << 1
    return 0x6000_0000


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_emulated_does_what_the_instruction_does(kind: str) -> None:
    """As the emulator for stopped guests has it, which is compared with the processor elsewhere."""
    rng = random.Random(kind)
    for _ in range(12):
        (insn,) = PPC64LE.decode(to_bytes(word(kind, rng)), rng.choice((0x1000_0130, 0x7FFF_8000_1000)))
        before = random_registers(rng.getrandbits(32)) | {"r13": PACA}
        effects = emulator.emulate(insn, {**before, abi.PC: insn.address}, lambda at, size: bytes(size))
        assert effects is not None
        after = emulated(insn, before)
        assert after == {**before, **effects.registers}, insn.text


def test_what_needs_memory_or_is_not_known_is_not_emulated() -> None:
    for text in (0xF8010010, 0xE8010010, 0x7C632214, 0x44000002):  # std, ld, add, sc
        (insn,) = PPC64LE.decode(to_bytes(text), 0x1000_0000)
        assert USER.emulation(insn, 64, 0) is None, insn.text


def test_moved_goes_on_elsewhere() -> None:
    for distance in (4, -4, 0x8000, -0x8004, 0x1234_5678):
        before = random_registers(distance) | {"r13": PACA}
        after = ran(USER.moved(distance)(HERE), {"r1": FRAME, "r13": PACA}, framed(before, 0x1001_0000))
        assert {name: after.registers[name] for name in before} == before
        assert after.memory[PACA + SRR0] == 0x1001_0000 + distance & MASK
        was = struct.unpack_from("<Q", PRISTINE, PACA + PRIORITY - DATA)[0]
        assert after.memory[PACA + PPR] == was


def entered(before: Mapping[str, int]) -> tuple[dict[str, int], dict[int, int]]:
    """Registers and memory where ours comes in: r9 to r12 are the kernel's by then, and the user's are in the paca."""
    now = {**before, "r9": before[abi.FLAGS], "r10": before["r1"], "r11": 0x1000_0130, "r12": USERS_MSR, "r13": PACA}
    now[abi.CTR] = 0x5555
    return now, {PACA + at: before[name] for name, at in SAVED.items()} | {PACA + KSAVE: FRAME}


def test_all_registers_are_saved() -> None:
    before = random_registers(1)
    now, memory = entered(before)
    after = ran(encode_items([*USER.saving()]) + to_bytes(TRAP), now, memory)
    frame = {at: after.memory.get(at, struct.unpack_from("<Q", PRISTINE, at - DATA)[0]) for at in framed(before, 0)}
    assert frame == framed(before, 0x1000_0130)
    assert after.registers["r1"] == FRAME


def test_the_kernel_finds_what_it_would_have_found() -> None:
    """And CR0 tells of user mode."""
    before = random_registers(2)
    now, memory = entered(before)
    scratch = [number("addi", name, "r0", 77) for name in ("r0", *(f"r{n}" for n in range(3, 13)))]
    spoil = [*scratch, plain("mtlr", "r3"), plain("mtxer", "r3"), plain("mtcr", "r3")]
    after = ran(encode_items([*USER.saving(), *spoil, *USER.unsaving()]) + to_bytes(TRAP), now, memory)
    kept = set(now) - {abi.CTR, abi.FLAGS, "r1"}
    assert {name: after.registers[name] for name in kept} == {name: now[name] for name in kept}
    assert after.registers["r1"] == FRAME
    assert after.registers[abi.FLAGS] >> 28 & ~1 == abi.GT


def copied(insn: int, pie: bool = False) -> bytes:
    (found,) = PPC64LE.decode(to_bytes(insn), 0x1000_0200)
    return USER.copy(found, 0x1000_8000, 64, pie)


def test_copies_lead_back() -> None:
    back = to_bytes(18 << 26 | (0x1000_0204 - 0x1000_8004) & 0x3FF_FFFC)
    for insn in (0xF8010010, 0x7C632214, 0x44000002):  # std, add, sc
        assert copied(insn, pie=True) == to_bytes(insn) + back


def test_what_is_relative_has_a_copy_where_the_program_is_always_at_its_place() -> None:
    addpcis = 0x4C60_0004  # r3 is where the next instruction is
    assert copied(addpcis)[:-4] != b""
    with pytest.raises(Unrelocatable):
        copied(addpcis, pie=True)


def test_between_a_load_that_reserves_and_its_store_nothing_stops() -> None:
    code = PPC64LE.decode(to_bytes(0x7D2018A8, 0x39290001, 0x7D2019AD, 0x4C82FFF4), 0x1000_0000)
    assert set(USER.reserved(code)) == {0x1000_0004, 0x1000_0008}


LAYOUT = TrapTableLayout(4, USER_KEY)
TABLE, RECORD, OWNER, NODE, AREA, FILE, ENTRY = range(DATA + 0x8000, DATA + 0x8700, 0x100)
INODE, TRAPPED, PAGE_IN_FILE = DATA + 0x9000, 0x1000_0130, 3
OFFSET = PAGE_IN_FILE << 16 | TRAPPED & 0xFFFF
FOUND, FOREIGN = HERE + 0x2000, KERNELS + 4
MAPPED = FilePageOffsets(bits=16, head=8, mapping=24, index=32, root=80, area=-32, file=160, inode=32)


def walk(absent: Label, other: Label) -> list[Item]:
    """To the record; to none where the entry is 0, and to another page where it is 1."""
    found: list[Item] = [*load(10, RECORD), *load(9, ENTRY), number("ld", "r8", "r9", 0)]
    for value, label in ((0, absent), (1, other)):
        found += [compare("cmpldi", 0, "r8", value), branch_if(Comparison.EQ, label)]
    return found


def dispatched(codes: Mapping[Key, int], **other: int) -> After:
    """After a trap. other: parts of the kernel's memory that are not as they are."""
    parts = {"head": 0, "mapping": OWNER + 1, "root": NODE, "area": AREA, "file": FILE, "inode": INODE} | other
    memory = {RECORD + 32: PAGE_IN_FILE, ENTRY: parts.get("entry", 0x1234_5678)}
    for name, base in (("head", RECORD), ("mapping", RECORD), ("root", OWNER), ("area", NODE), ("file", AREA)):
        memory[base + getattr(MAPPED, name)] = parts[name]
    memory[FILE + MAPPED.inode] = parts["inode"]
    table = struct.unpack(f"<{LAYOUT.size // 8}Q", LAYOUT.encode(codes))
    memory |= {TABLE + 8 * at: word for at, word in enumerate(table)}
    user = PowerUser(USER.place, walk)
    code = lower_user_trap_handler(PlacedTrapTable(LAYOUT, TABLE), MAPPED, KERNELS, user)(HERE)
    now, saved = entered(random_registers(3))
    return ran(code, now, memory | saved)


def test_a_trap_leads_to_its_code_to_the_kernel_or_back() -> None:
    ours: Mapping[Key, int] = {(OFFSET, INODE): FOUND}
    assert dispatched(ours).registers[abi.PC] == FOUND
    keys: list[Key] = [(OFFSET + 4, INODE), (OFFSET, INODE + 8), (OFFSET + (1 << 16), INODE)]
    for key in keys:
        assert dispatched({key: FOUND}).registers[abi.PC] == FOREIGN
    # The owner of a large page's tail is counts of the page: nothing has that address.
    kernels: list[Mapping[str, int]] = [{"mapping": OWNER}, {"root": 0}, {"file": 0}, {"entry": 1}]
    kernels += [{"head": RECORD + 1, "mapping": counts} for counts in (0x1FD, 0x1FF, 0x200_0000_0001)]
    for parts in kernels:
        assert dispatched(ours, **parts).registers[abi.PC] == FOREIGN, parts
    again = dispatched(ours, entry=0)
    assert again.registers[abi.PC] not in (FOUND, FOREIGN) and again.memory[PACA + SRR0] == TRAPPED
    assert dispatched(ours, mapping=OWNER + 3, root=1).registers[abi.PC] == FOUND, "a merged page"
