"""Run original code and its relocated copy in Unicorn, from the same state, and compare all that either left.

    original run                       relocated run
    ┌──────────────────────┐           ┌──────────────────────┐        ┌──────────────────────┐
    │ window as it is      │           │ jmp copy; int3 …     ├───────►│ copy, branch back    │
    ├──────────────────────┤           ├──────────────────────┤◄───────┤ with its counters    │
    │ rest of its function │           │ rest of its function │        └──────────┬───────────┘
    └──────────┬───────────┘           └──────────┬───────────┘                   │
               ▼ first address outside            ▼                               ▼ first address outside
    compared: where it left to (or the fault), every register and flag, every byte of memory, and which instructions
    ran, in order; the visits to the probed address are in that order, so no hit is lost. Every counter has counted
    exactly the visits to its instruction.

Memory appears where it is touched, with contents made from its address, so that any state can run.
Eight bytes below the stack pointer that either run left, or that it had at a counter, are not compared: an interrupt
may write there. What is proven dead is overwritten at every counter (`spoil`); where both runs were stopped inside
the function it may differ, for as long as it is dead.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import iced_x86 as iced
import unicorn
from unicorn import x86_const

from gdb_optprobe.isa.base import Dead, Flow, Insn, Relocated
from gdb_optprobe.isa.x86_64 import X86_64, abi, liveness
from gdb_optprobe.isa.x86_64.relocator import is_nop

PAGE = 4096
MASK = (1 << 64) - 1
LIMIT = 300  # instructions run, after which both runs are stopped at the same point
FRAMES, DATA_FRAMES = 64, 32
_LEFT = (unicorn.UC_ERR_FETCH_UNMAPPED, unicorn.UC_ERR_FETCH_PROT)
STACK = 0xFFFF_C900_0010_3800
DATA = 0xFFFF_8880_0123_4000
DEEPEST = 1 << 16
UNLIMITED = 1 << 30

REGISTERS = {name: getattr(x86_const, f"UC_X86_REG_{name.upper()}") for name in abi.REGISTERS}
VECTORS = {f"xmm{n}": getattr(x86_const, f"UC_X86_REG_XMM{n}") for n in range(16)}
State = Mapping[str, int]


@dataclass(frozen=True)
class Outcome:
    """Where a run came to, and all that it left.

    stacks: the stack pointer at each visit to a watched address.
    beyond: it read what lies below its stack pointer, where a counter (or an interrupt) may have been.
    """

    reached: int
    fault: str
    registers: Mapping[str, int]
    trace: tuple[int, ...]
    memory: Mapping[int, bytes] = field(repr=False)
    stacks: tuple[int, ...] = ()
    beyond: bool = False


@dataclass(frozen=True)
class Probed:
    """A window in its function, and the counters on its instructions.

    code:     the function, by address.
    counters: by the address of the instruction that each counts.
    """

    code: Mapping[int, Insn]
    counters: Mapping[int, int] = field(default_factory=dict)

    @functools.cached_property
    def span(self) -> tuple[int, int]:
        return min(self.code), max(insn.end for insn in self.code.values())

    @functools.cached_property
    def unfit(self) -> frozenset[int]:
        """Where both runs end, for Unicorn cannot be trusted with what stands there."""
        return frozenset(address for address, insn in self.code.items() if not is_fit(insn))

    def dead(self, address: int) -> Dead:
        return X86_64.dead_at(address, self.code)

    def still_dead(self, address: int) -> Dead:
        """All that can be proven dead there, however long that takes: what was dead before, and was not written."""
        return liveness.dead_at(address, self.code, budget=UNLIMITED) if address in self.code else Dead()

    def before(self) -> dict[int, Callable[[int], bytes]]:
        """For `relocate`: at each counter, spoil what is said to be dead there, and count."""

        def program(counter: int, dead: Dead) -> Callable[[int], bytes]:
            spoiler = spoil(dead)
            return lambda at: spoiler + X86_64.count(counter, at + len(spoiler), dead)

        return {address: program(counter, self.dead(address)) for address, counter in self.counters.items()}


def spoil(dead: Dead) -> bytes:
    """Code that changes all that is dead, and nothing else."""
    out = bytearray()
    for number, name in enumerate(abi.GENERAL):
        if name in dead.registers:  # movabs
            out += bytes((0x48 | number >> 3, 0xB8 | number & 7)) + random.Random(name).randbytes(8)
    if flags := dead_flags(dead):  # pushfq; xorq $flags, (%rsp); popfq
        out += b"\x9c\x48\x81\x34\x24" + flags.to_bytes(4, "little") + b"\x9d"
    return bytes(out)


def dead_flags(dead: Dead) -> int:
    return (abi.COUNTER_FLAGS if dead.flags else 0) | (abi.CF if abi.CARRY in dead.registers else 0)


@functools.lru_cache(256)
def contents(page: int) -> bytes:
    return random.Random(page).randbytes(PAGE)


def execute(
    text: Mapping[int, bytes],
    begin: int,
    inside: Sequence[tuple[int, int]],
    places: Mapping[int, tuple[int, ...]],
    state: State,
    again: int | None = None,
    ends: Collection[int] = (),
    turning: Collection[int] = (),
    watched: Collection[int] = (),
    spare: Collection[int] = (),
) -> Outcome:
    """From `begin` until execution leaves `inside` (address ranges) or comes to one of `ends`.

    text: code by address. places: address of an instruction to the original instructions it stands for.
    again: an address at which the run starts over from `begin`, as a branch that is not there would do.
    turning: string instructions with a rep prefix, whose turns are one visit. watched: see `Outcome.stacks`.
    spare: pages that, as the stack's, do not count as data's, of which a run has so many and no more.
    """
    uc: Any = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    # Without this, addresses are physical ones of 52 bits.
    uc.ctl_set_tlb_mode(unicorn.UC_TLB_VIRTUAL)
    uc.mem_map(0, FRAMES * PAGE)
    frames: dict[int, int] = {}
    pages: dict[int, int] = {}
    first: dict[int, bytes] = {}
    data_frames = 0

    spans = [(address, address + len(code)) for address, code in text.items()]

    def appear(page: int, to_run: bool) -> bool:
        nonlocal data_frames
        # Around code there are returns: Unicorn translates ahead, to the end of a block, and must not fail at it.
        around = to_run or any(page < high and low < page + PAGE for low, high in (*inside, *spans))
        data_frames += not (around or page in spare or abs(page - STACK) < DEEPEST)
        if len(frames) == FRAMES or data_frames > DATA_FRAMES:
            return False
        data = bytearray(b"\xc3" * PAGE if around else contents(page))
        for address, code in text.items():
            low, high = max(page, address), min(page + PAGE, address + len(code))
            if low < high:
                data[low - page : high - page] = code[low - address : high - address]
        frames[page], first[page] = len(frames) * PAGE, bytes(data)
        pages[frames[page]] = page
        uc.mem_write(frames[page], first[page])
        return True

    trace: list[int] = []
    stacks: list[int] = []
    last = -1

    def on_code(_: object, address: int, size: int, __: object) -> None:
        nonlocal last
        turn = address == last and address in turning
        last = address
        if turn:
            return
        if address in places:
            if len(trace) >= LIMIT:
                uc.emu_stop()
                return
            if address not in ends:
                trace.extend(places[address])
        if address in watched:
            stacks.append(uc.reg_read(x86_const.UC_X86_REG_RSP))
        outside = not any(low <= address < high for low, high in inside)
        if outside or address in ends or (address == again and begin != again):
            uc.emu_stop()

    def on_missing(_: object, address: int, access: int, entry: Any, __: object) -> bool:
        page = address & ~(PAGE - 1)
        if page not in frames and not appear(page, access == unicorn.UC_MEM_FETCH):
            return False
        entry.paddr, entry.perms = frames[page], unicorn.UC_PROT_ALL
        return True

    beyond = False

    def on_read(_: object, __: int, address: int, size: int, ___: int, ____: object) -> None:
        nonlocal beyond
        stack = uc.reg_read(x86_const.UC_X86_REG_RSP)
        at = pages[address & -PAGE] + address % PAGE  # Unicorn names physical memory
        beyond |= stack - 8 < at + size and at < stack

    if watched:
        uc.hook_add(unicorn.UC_HOOK_MEM_READ, on_read)
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
    return Outcome(at, fault, registers, tuple(trace), changed, tuple(stacks), beyond)


class Unfit(Exception):
    """A run from this state is none that a kernel makes: its stack pointer is none, or it reads what lies below it."""


def compare(window: Sequence[Insn], copy: Relocated, state: State, probed: Probed | None = None) -> str:
    """What differs between `window` and `copy` from `state`; empty where nothing does. Raises Unfit.

    probed: the function around the window, in which both runs go on, and the counters in the copy.
    """
    start, end = window[0].address, window[-1].end
    probed = probed or Probed({insn.address: insn for insn in window})
    low, high = probed.span
    code = b"".join(probed.code[address].data for address in sorted(probed.code))
    here = slice(start - low, end - low)
    # An elided nop has no place of its own.
    elided = {insn.address for insn in window if is_nop(insn.data) and insn.address not in probed.counters}
    kept = {address: (address,) for address in probed.code if address not in elided}
    turning = {insn.address for insn in (*probed.code.values(), *_decoded(copy)) if X86_64.restarts(insn)}
    ends = {address for address in probed.unfit if not start <= address < end}
    more = {"ends": ends, "turning": turning, "spare": {counter & -PAGE for counter in probed.counters.values()}}
    before = execute({low: code}, start, [(low, high)], kept, state, watched=probed.counters, **more)
    if before.beyond or any(not -DEEPEST < stack - STACK < DEEPEST for stack in before.stacks):
        raise Unfit
    places = {address: place for address, place in kept.items() if not start <= address < end}
    places |= {copy.address + offset: (address,) for offset, address in copy.origins[: len(window)] if address in kept}
    around = [(low, start), (end, high), (copy.address, copy.address + len(copy.data))]
    if end - start >= X86_64.branch_size:
        patch = X86_64.branch(start, copy.address)
        patched = code[: here.start] + patch + b"\xcc" * (end - start - len(patch)) + code[here.stop :]
        inside = [(start, start + len(patch)), *around]
        after = execute({low: patched, copy.address: copy.data}, start, inside, places, state, **more)
    else:
        text = {low: code, copy.address: copy.data}
        after = execute(text, copy.address, around, places, state, start, **more)
    return "; ".join(_differences(before, after, copy, window, probed))


def _decoded(copy: Relocated) -> list[Insn]:
    return X86_64.decode(copy.data, copy.address)


def _differences(
    before: Outcome, after: Outcome, copy: Relocated, window: Sequence[Insn], probed: Probed
) -> Iterator[str]:
    covered = range(window[0].address, window[-1].end)
    if not before.trace and not before.fault and not all(is_nop(insn.data) for insn in window):
        yield "did not run"
    if before.trace != after.trace:
        same = next((n for n, (a, b) in enumerate(zip(before.trace, after.trace, strict=False)) if a != b), 0)
        yield f"ran {_listed(before.trace, same)} and {_listed(after.trace, same)}"
    if before.fault != after.fault:
        yield f"fault '{before.fault}' at {before.reached:#x} and '{after.fault}' at {after.reached:#x}"
    here = {address for offset, address in copy.origins if copy.address + offset == after.reached}
    reached = here or {after.reached}
    # A fault inside what one instruction became is that instruction's.
    if before.reached not in reached and not (before.fault and before.reached in covered):
        yield f"reached {before.reached:#x} and {after.reached:#x}"
    yield from _registers(before, after, probed)
    for address, counter in probed.counters.items():
        visits = before.trace.count(address)
        counted = (_word(after, counter) - int.from_bytes(_fresh(counter), "little")) & MASK
        if counted != visits:
            yield f"{address:#x} ran {visits} times, counted {counted}"
    yield from _memory(before, after, covered, probed)


def _listed(trace: Sequence[int], start: int) -> str:
    return f"{len(trace)} instructions, from the {start}th on " + " ".join(map(hex, trace[start : start + 5]))


def _registers(before: Outcome, after: Outcome, probed: Probed) -> Iterator[str]:
    dead = probed.still_dead(before.reached) if probed.counters else Dead()
    for name, value in before.registers.items():
        other = after.registers[name]
        if name == "eflags":
            value, other = value & ~dead_flags(dead), other & ~dead_flags(dead)
        # Unicorn tells wrong flags where a division faults right behind what set them.
        if value != other and name not in dead.registers and not (before.fault and name in ("rsp", "eflags")):
            yield f"{name} {value:#x} and {other:#x}"


def _memory(before: Outcome, after: Outcome, covered: range, probed: Probed) -> Iterator[str]:
    sp = before.registers["rsp"]
    # Where an interrupt could have written, and where we have counted.
    ignored = {stack - 8 + byte for stack in (*before.stacks, sp) for byte in range(8)}
    ignored |= {counter + byte for counter in probed.counters.values() for byte in range(8)}
    for page in sorted({*before.memory, *after.memory}):
        old = before.memory.get(page) or contents(page)
        new = after.memory.get(page) or contents(page)
        if old == new or before.fault:
            continue
        for offset in (i for i in range(PAGE) if old[i] != new[i]):
            address = page + offset
            if address not in covered and address not in ignored:
                yield f"memory {address:#x}: {old[offset]:#x} and {new[offset]:#x}"
                break


def _fresh(address: int) -> bytes:
    return contents(address & ~(PAGE - 1))[address % PAGE :][:8]


def _word(outcome: Outcome, address: int) -> int:
    page = outcome.memory.get(address & ~(PAGE - 1))
    return int.from_bytes(page[address % PAGE :][:8] if page else _fresh(address), "little")


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
    """Whether Unicorn can be trusted with `insn` under random states, and it reads nothing that is below the stack."""
    words = insn.text.split()
    name = next((word for word in words if not word.startswith(("rep", "lock"))), "")
    segments = (
        any(f"%{part}" in words[-1] for part in ("cr", "dr", "ss", "ds", "es", "fs", "gs")) and "(" not in insn.text
    )
    below = re.search(r"-0x[0-9a-f]+\(%rsp|-\d+\(%rsp", insn.text)  # `lock addl $0, -4(%rsp)`, a barrier
    return not segments and not below and not name.startswith(_UNFIT)


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
