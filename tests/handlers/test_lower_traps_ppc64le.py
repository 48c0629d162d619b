"""What runs before the kernel's entry code saves registers, under qemu-ppc64le: where it goes, and what it changes.

User mode has no SRR0, SRR1, SPRG2 and MSR: words of the PACA stand for them, and a trap for `rfid`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from gdb_optprobe.guest.linux.arch.ppc64le.trap_entry import SAVED, TRAPPING
from gdb_optprobe.handlers.lower_traps import PlacedTrapTable, lower_trap_handler
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.ppc64le import PPC64LE, abi
from gdb_optprobe.isa.ppc64le.encodings import number, plain
from gdb_optprobe.isa.ppc64le.fields import rotated, to_bytes, word_of
from gdb_optprobe.isa.trapping import Entry
from gdb_optprobe.maps.trap_table import KERNEL_KEY, TrapTableLayout

from ..isa.ppc64le.oracle import ABOVE, DATA, DATA_SIZE, HERE, MASK, NEAR, SIGTRAP, STACK, TRAP, execute, needs_oracle

pytestmark = needs_oracle

PACA, TABLE, TEXT, KERNELS = DATA + 0x2000, DATA + 0x4000, NEAR, ABOVE
SRR0, SRR1, SPRG2, MSR, STALE = 0x300, 0x308, 0x310, 0x318, 0x321
AREA = {name: 0x80 + 8 * at for at, name in enumerate(SAVED)}
ENTRY = Entry(KERNELS, Insn(0, to_bytes(number("andi.", "r12", "r10", 1 << 14)), "", Flow.NEXT), AREA, STALE)
IN_USER_MODE = {
    plain("mtsprg2"): number("std", "r0", "r13", SPRG2),
    plain("mfsprg2"): number("ld", "r0", "r13", SPRG2),
    plain("mtmsrd", "r0"): number("std", "r0", "r13", MSR),
    plain("rfid"): TRAP,
    **{plain("mtsrr0", f"r{n}"): number("std", f"r{n}", "r13", SRR0) for n in range(32)},
    **{plain("mfsrr1", f"r{n}"): number("ld", f"r{n}", "r13", SRR1) for n in range(32)},
}
DETOUR = 0xC000_0000_01E0_0040
KERNEL, USER = 0x8000_0000_0000_9033, 0x8000_0000_0000_D033
LAYOUT = TrapTableLayout(64, KERNEL_KEY)
PRISTINE = b"".join(struct.pack("<Q", rotated(at * -0x61C8_864F, 29)) for at in range(DATA, DATA + DATA_SIZE, 8))
"""As oracle.s fills it."""
GONE = to_bytes(0x7C0802A6)  # mflr r0


@dataclass(frozen=True)
class After:
    """Whether the kernel's own goes on, and otherwise where who has trapped does."""

    kernels: bool
    saved: int


def trapped(detours: Mapping[int, int], at: int, there: bytes = PPC64LE.trap, msr: int = KERNEL) -> After:
    """A trap at `at`, where `there` stands by now. Asserts that nothing else was changed."""
    code = lower_trap_handler(PlacedTrapTable(LAYOUT, TABLE), ENTRY, TRAPPING)(HERE)
    words = [word_of(code[i : i + 4]) for i in range(0, len(code), 4)]
    code = to_bytes(*(IN_USER_MODE.get(word, word) for word in words))
    rng = random.Random(at)
    before = {name: rng.getrandbits(64) for name in (*abi.GENERAL, abi.CTR, abi.LR)}
    before |= {abi.FLAGS: rng.getrandbits(32), abi.XER: 0, abi.SP: STACK, abi.PC: HERE}
    area = {name: before[name] for name in SAVED} | {"r13": PACA}
    # By then the kernel has made of these registers what it needs.
    now = before | {"r9": before[abi.FLAGS], "r11": at, "r12": msr, "r13": PACA, abi.CTR: rng.getrandbits(64)}
    memory = bytearray(PRISTINE)
    memory[TABLE - DATA : TABLE - DATA + LAYOUT.size] = LAYOUT.encode(
        {(key,): detour for key, detour in detours.items()}
    )
    for offset, word in ({AREA[name]: area[name] for name in SAVED} | {SRR0: at, SRR1: msr, MSR: KERNEL}).items():
        struct.pack_into("<Q", memory, PACA + offset - DATA, word)
    patches = [(HERE + i, code[i : i + 4]) for i in range(0, len(code), 4)] + [(at, there)]
    changed = (i for i in range(0, DATA_SIZE, 4) if memory[i : i + 4] != PRISTINE[i : i + 4])
    patches += [(DATA + i, bytes(memory[i : i + 4])) for i in changed]
    (left,) = execute([(now, patches)], room=512)
    assert left.signal == SIGTRAP
    found = bytearray(PRISTINE)
    for where, word in left.memory.items():
        struct.pack_into("<Q", found, where - DATA, word)
    for offset in (SPRG2, MSR, SRR0):
        place = slice(PACA + offset - DATA, PACA + offset - DATA + 8)
        memory[place] = found[place]
    back = left.pc != KERNELS
    kept = set(before) - {abi.PC} - ({"r9", "r10", "r11", "r12", abi.CTR, abi.FLAGS} if not back else set())
    assert {name: left.registers[name] for name in kept} == {name: (before | {"r13": PACA})[name] for name in kept}
    if back:
        assert found[PACA + STALE - DATA] == 0
        memory[PACA + STALE - DATA] = 0
    else:
        assert [left.registers[name] for name in ("r9", "r11", "r12")] == [before[abi.FLAGS], at, msr]
        assert left.registers["r10"] == msr & 1 << 14
    assert found == memory
    saved, machine_state = (struct.unpack_from("<Q", found, PACA + offset - DATA)[0] for offset in (SRR0, MSR))
    assert machine_state == (0 if saved != at else KERNEL)  # no interrupt may come once SRR0 is written
    return After(not back, saved)


def test_who_traps_at_a_probe_goes_on_in_its_detour() -> None:
    assert trapped({TEXT: DETOUR}, TEXT) == After(False, DETOUR)


@pytest.mark.parametrize("seed", range(4))
def test_among_others(seed: int) -> None:
    chosen = random.Random(seed)
    places = chosen.sample(range(TEXT, TEXT + 0x1000, 4), 32)
    detours = {at: chosen.getrandbits(62) & MASK - 3 | 1 << 60 for at in places}
    for at in places[:4]:
        assert trapped(detours, at) == After(False, detours[at])
    other = next(at for at in range(TEXT, TEXT + 0x1000, 4) if at not in detours)
    assert trapped(detours, other) == After(True, other)


def test_a_search_goes_on_behind_the_end_of_the_table() -> None:
    end = LAYOUT.size - LAYOUT.slot_size
    last, next_one, *_ = (at for at in range(TEXT, TEXT + 0x10000, 4) if LAYOUT.home((at,)) == end)
    assert trapped({last: 4, next_one: DETOUR}, next_one) == After(False, DETOUR)


def test_a_trap_that_is_not_ours_is_the_kernels() -> None:
    assert trapped({TEXT: DETOUR}, TEXT + 8) == After(True, TEXT + 8)


def test_a_program_of_the_users_may_trap_at_any_address() -> None:
    assert trapped({TEXT: DETOUR}, TEXT, msr=USER) == After(True, TEXT)


def test_where_our_trap_has_gone_the_instruction_is_run() -> None:
    assert trapped({TEXT: 0}, TEXT, there=GONE) == After(False, TEXT)


@pytest.mark.parametrize("word", [0x7FE00008, 0x7D821008, 0x7C0A4888, 0x0B090000, 0x0FE00000, 0x0BE00000])
def test_where_somebody_elses_trap_stands_by_now_it_is_the_kernels(word: int) -> None:
    """A kprobe's or kgdb's, on a condition or always."""
    assert trapped({TEXT: 0}, TEXT, there=to_bytes(word)) == After(True, TEXT)
