"""Run original code and its relocated copy in Unicorn, from the same state, and compare all that either left.

    original run                       relocated run
    ┌──────────────────────┐           ┌──────────────────────┐        ┌──────────────────────┐
    │ window as it is      │           │ jmp copy; int3 …     ├───────►│ copy, branch back    │
    └──────────┬───────────┘           └──────────────────────┘        └──────────┬───────────┘
               ▼ first address outside                                             ▼ first address outside
    compared: where it left to (or the fault), every register and flag, every byte of memory, and which displaced
    instructions ran, in order; the visits to the probed address are in that order, so no hit is lost.

Memory appears where it is touched, with contents made from its address, so that any state can run.
Eight bytes below the stack pointer that either run left are not compared: an interrupt may write there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import iced_x86 as iced
import unicorn
from unicorn import x86_const

from gdb_optprobe.isa.base import Flow, Insn, Relocated, Unrelocatable
from gdb_optprobe.isa.x86_64 import X86_64, abi
from gdb_optprobe.isa.x86_64.relocator import is_nop

PAGE = 4096
MASK = (1 << 64) - 1
LIMIT = 300  # displaced instructions run, after which both runs are stopped at the same point
FRAMES = 32
_LEFT = (unicorn.UC_ERR_FETCH_UNMAPPED, unicorn.UC_ERR_FETCH_PROT)
STACK = 0xFFFF_C900_0010_3800
DATA = 0xFFFF_8880_0123_4000

REGISTERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in abi.REGISTERS}
VECTORS = {f"xmm{n}": getattr(x86_const, f"UC_X86_REG_XMM{n}") for n in range(16)}
State = Mapping[str, int]


@dataclass(frozen=True)
class Outcome:
    """Where a run came to, and all that it left."""

    reached: int
    fault: str
    registers: Mapping[str, int]
    trace: tuple[int, ...]
    memory: Mapping[int, bytes] = field(repr=False)


def contents(page: int) -> bytes:
    return random.Random(page).randbytes(PAGE)


def execute(
    text: Mapping[int, bytes],
    begin: int,
    inside: Sequence[tuple[int, int]],
    places: Mapping[int, tuple[int, ...]],
    state: State,
    again: int | None = None,
) -> Outcome:
    """From `begin` until execution leaves `inside` (address ranges).

    text: code by address. places: address of an instruction to the original instructions it stands for.
    again: an address at which the run starts over from `begin`, as a branch that is not there would do.
    """
    uc: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    # Without this, addresses are physical ones of 52 bits.
    uc.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
    uc.mem_map(0, FRAMES * PAGE)
    frames: dict[int, int] = {}
    first: dict[int, bytes] = {}

    spans = [(address, address + len(code)) for address, code in text.items()]

    def appear(page: int, to_run: bool) -> None:
        # Around code there are returns: Unicorn translates ahead, to the end of a block, and must not fail at it.
        around = to_run or any(page < high and low < page + PAGE for low, high in (*inside, *spans))
        data = bytearray(b"\xc3" * PAGE if around else contents(page))
        for address, code in text.items():
            low, high = max(page, address), min(page + PAGE, address + len(code))
            if low < high:
                data[low - page : high - page] = code[low - address : high - address]
        frames[page], first[page] = len(frames) * PAGE, bytes(data)
        uc.mem_write(frames[page], first[page])

    trace: list[int] = []

    def on_code(_: object, address: int, size: int, __: object) -> None:
        if address in places:
            if len(trace) >= LIMIT:
                uc.emu_stop()
                return
            trace.extend(places[address])
        if (address == again and begin != again) or not any(low <= address < high for low, high in inside):
            uc.emu_stop()

    def on_missing(_: object, address: int, access: int, entry: Any, __: object) -> bool:
        page = address & ~(PAGE - 1)
        if page not in frames:
            if len(frames) == FRAMES:
                return False
            appear(page, access == unicorn.UC_MEM_FETCH)
        entry.paddr, entry.perms = frames[page], unicorn.UC_PROT_ALL
        return True

    uc.hook_add(unicorn.UC_HOOK_CODE, on_code)
    uc.hook_add(unicorn.UC_HOOK_TLB_FILL, on_missing)
    for name, value in state.items():
        uc.reg_write(REGISTERS[name] if name in REGISTERS else VECTORS[name], value)
    fault = ""
    at = begin
    while True:
        try:
            uc.emu_start(at, MASK)
        except unicorn.UcError as error:
            fault = "" if error.errno in _LEFT else str(error)
        at = uc.reg_read(x86_const.UC_X86_REG_RIP)
        if fault or at != again or len(trace) >= LIMIT:
            break
        at = begin
    registers = {name: uc.reg_read(number) for name, number in (REGISTERS | VECTORS).items() if name != "rip"}
    memory = {page: bytes(uc.mem_read(frame, PAGE)) for page, frame in frames.items()}
    changed = {page: data for page, data in memory.items() if data != first[page]}
    return Outcome(at, fault, registers, tuple(trace), changed)


def compare(window: Sequence[Insn], copy: Relocated, state: State) -> str:
    """What differs between `window` and `copy` from `state`; empty where nothing does."""
    start, end = window[0].address, window[-1].end
    code = b"".join(insn.data for insn in window)
    # An elided nop has no place of its own.
    kept = [insn.address for insn in window if not is_nop(insn.data)]
    before = execute({start: code}, start, [(start, end)], {address: (address,) for address in kept}, state)
    places = {copy.address + offset: (address,) for offset, address in copy.origins if address in kept}
    text = {copy.address: copy.data}
    inside = [(copy.address, copy.address + len(copy.data))]
    if len(code) >= X86_64.branch_size:
        patch = X86_64.branch(start, copy.address)
        text[start] = patch + b"\xcc" * (len(code) - len(patch))
        after = execute(text, start, [(start, start + len(patch)), *inside], places, state)
    else:
        text[start] = code
        after = execute(text, copy.address, inside, places, state, again=start)
    return "; ".join(_differences(before, after, copy, range(start, end), bool(kept)))


def _differences(before: Outcome, after: Outcome, copy: Relocated, window: range, kept: bool) -> Iterator[str]:
    if not before.trace and not before.fault and kept:
        yield "did not run"
    if before.trace != after.trace:
        yield f"ran {[hex(a) for a in before.trace]} and {[hex(a) for a in after.trace]}"
    if before.fault != after.fault:
        yield f"fault '{before.fault}' at {before.reached:#x} and '{after.fault}' at {after.reached:#x}"
    here = {address for offset, address in copy.origins if copy.address + offset == after.reached}
    reached = here or {after.reached}
    # A fault inside what one instruction became is that instruction's.
    if before.reached not in reached and not (before.fault and before.reached in window):
        yield f"reached {before.reached:#x} and {after.reached:#x}"
    for name, value in before.registers.items():
        if value != after.registers[name] and not (before.fault and name == "rsp"):
            yield f"{name} {value:#x} and {after.registers[name]:#x}"
    sp = before.registers["rsp"]
    for page in sorted({*before.memory, *after.memory}):
        old = before.memory.get(page) or contents(page)
        new = after.memory.get(page) or contents(page)
        for offset in (i for i in range(PAGE) if old[i] != new[i]):
            address = page + offset
            if sp - 8 <= address < sp or before.fault or address in window:
                continue
            yield f"memory {address:#x}: {old[offset]:#x} and {new[offset]:#x}"
            break


INTERESTING = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 63, MASK, MASK - 1)


def random_state(rng: random.Random) -> dict[str, int]:
    """Registers as a kernel might have them: pointers, small numbers, edges, noise."""
    state = {
        name: rng.choice(
            (DATA + rng.randrange(0, 0x2000), rng.choice(INTERESTING), rng.getrandbits(64), rng.getrandbits(8))
        )
        for name in abi.GENERAL
    }
    state["rcx"] = rng.choice((0, 1, 2, 3, 5, rng.randrange(16), DATA + rng.randrange(0x1000)))
    state["rsp"] = STACK + 8 * rng.randrange(64)
    state["eflags"] = 0x202 | rng.getrandbits(12) & abi.ARITHMETIC_FLAGS
    state["xmm0"], state["xmm1"] = rng.getrandbits(128), rng.getrandbits(128)
    return state


# What would leave Unicorn's machine itself in another state, or is not deterministic.
_UNFIT = (
    "inb", "inw", "inl", "insb", "insw", "insl", "out", "wrmsr", "rdmsr", "rdtsc", "rdtscp", "rdrand", "rdseed",
    "rdpmc", "hlt", "lgdt", "lidt", "lldt", "ltr", "lmsw", "swapgs", "cpuid", "clts", "xsetbv", "sti", "cli", "popf",
    "wbinvd", "invlpg", "invd", "monitor", "mwait", "xrstor", "xsave", "fxsave", "fxrstor", "wrfsbase", "wrgsbase",
    "wrpkru", "vm", "enc", "inv", "xbegin", "fn", "fs", "fl", "fw", "str", "sldt", "sgdt", "sidt", "smsw", "lar",
    "lsl", "clflush", "clwb", "serialize", "pvalidate", "rmp", "sysret", "rdpkru", "clac", "stac", "endbr", "rdssp",
    "incssp", "wrss", "psmash", "tile", "ptwrite", "verw",
)  # fmt: skip


def is_fit(insn: Insn) -> bool:
    """Whether Unicorn can be trusted with `insn` under random states."""
    words = insn.text.split()
    name = next((word for word in words if not word.startswith(("rep", "lock"))), "")
    segments = (
        any(f"%{part}" in words[-1] for part in ("cr", "dr", "ss", "ds", "es", "fs", "gs")) and "(" not in insn.text
    )
    return not segments and not name.startswith(_UNFIT)


@dataclass
class Survey:
    windows: int = 0
    executed: int = 0
    same: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    unfit: int = 0
    differences: list[str] = field(default_factory=list)


def survey(text: bytes, base: int, windows: int, seed: int) -> Survey:
    """Relocate and run `windows` random windows of real text, near and far; collect what differs.

    Reproducible: the windows and states depend on `seed` alone.
    """
    rng = random.Random(seed)
    found = Survey()
    for _ in range(100 + 10 * windows):  # a piece of `text` may be filler, or no code at all
        at = rng.randrange(0, max(1, len(text) - 4096))
        if text[at : at + 4096].count(0xCC) > 2048:
            continue
        # The first few may not be the program's: a sweep from anywhere soon falls into step.
        insns = X86_64.decode(text[at : at + 4096], base + at)[16:]
        starts = [index for index, insn in enumerate(insns[:-8]) if insn.data != b"\xcc"]
        for first in rng.sample(starts, min(len(starts), 32, windows - found.windows)):
            needed = rng.choice((1, 5, 5, 5, 5, 8))
            window: list[Insn] = []
            while sum(insn.size for insn in window) < needed:
                window.append(insns[first + len(window)])
            found.windows += 1
            _one(window, rng, found)
        if found.windows >= windows:
            break
    return found


def _one(window: list[Insn], rng: random.Random, found: Survey) -> None:
    start = window[0].address
    near = start + rng.choice((-1, 1)) * rng.randrange(0x1_0000, 0x4000_0000)
    to = rng.choice((near, 0xFFFF_FFFF_0200_0000 + rng.randrange(0x1000_0000))) & MASK
    if not -0x7000_0000 < to - start < 0x7000_0000 or to > 0xFFFF_FFFF_FF00_0000:
        to = start - 0x1000_0000
    try:
        copy = X86_64.relocate(window, to)
    except Unrelocatable as refusal:
        found.refused[refusal.hazard.name] += 1
        return
    where = f"{start:#x} {b''.join(insn.data for insn in window).hex()} to {to:#x}"
    for disagreement in second_opinion(window, copy):
        found.differences.append(f"{where}: iced-x86 {disagreement}")
    if not all(is_fit(insn) for insn in window):
        found.unfit += 1
        return
    found.executed += 1
    difference = compare(window, copy, random_state(rng))
    if difference:
        found.differences.append(f"{where}: {difference}")
    else:
        found.same += 1


def second_opinion(window: Sequence[Insn], copy: Relocated) -> Iterator[str]:
    """Where iced-x86 sees another length or branch target, in the original or in the copy."""
    for insn in (*window, *X86_64.decode(copy.data, copy.address)):
        other = iced.Decoder(64, insn.data, ip=insn.address).decode()
        if other.is_invalid or other.len != insn.size:
            yield f"decodes {insn.data.hex()} as {other} of {other.len} bytes"
        if insn.target is not None and insn.flow is not Flow.NEXT and other.near_branch_target != insn.target:
            yield f"has {insn.text} at {insn.address:#x} go to {other.near_branch_target:#x}"
    if sum(insn.size for insn in X86_64.decode(copy.data, copy.address)) != len(copy.data):
        yield f"cannot decode the copy {copy.data.hex()}"
