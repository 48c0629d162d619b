"""Save the registers that a program changes, and restore them.

    sp ─►  0  pairs of registers, by stp and ldp; the first pair moves sp
           …  a single one, and the flags, through SCRATCH
The stack pointer is a multiple of 16 at all times. Below it nothing belongs to the interrupted function (AAPCS64, the
stack).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.isa.aarch64.abi import FLAGS, GENERAL, SP
from gdb_optprobe.isa.aarch64.encodings import moved, number, pair, plain, scaled
from gdb_optprobe.isa.codegen import EntryState

SCRATCH = "x17"
WORD = 8


@dataclass(frozen=True, slots=True)
class _Frame:
    """Saved registers. size: of the frame, a multiple of 16. slots: offsets from sp by name."""

    size: int
    slots: Mapping[str, int]


class Spills:
    """Frames, the innermost last."""

    def __init__(self, before: EntryState) -> None:
        frame = _planned(before.kept.names)
        held = {name: at for name, at in frame.slots.items() if name != before.kept.but}
        self._frames = [replace(frame, slots=held)]

    @property
    def depth(self) -> int:
        """Return by how many bytes sp is lower than before the program."""
        return sum(frame.size for frame in self._frames)

    @property
    def uses_scratch(self) -> bool:
        """Return whether saving into the innermost frame uses SCRATCH."""
        return FLAGS in self._frames[-1].slots

    def has(self, name: str) -> bool:
        return any(name in frame.slots for frame in self._frames)

    def save(self, names: Sequence[str]) -> list[int]:
        """Save registers. SCRATCH may change, if the flags are among them."""
        frame = _planned(names)
        self._frames.append(frame)
        words: list[int] = []
        for names_there, at in _grouped(frame.slots):
            if FLAGS in names_there:
                words.append(plain("get_nzcv", SCRATCH))
            words.append(_access("push", "str", names_there, at, -frame.size))
        return words

    def open_frame(self, size: int) -> list[int]:
        """Open a frame without saving anything."""
        self._frames.append(_Frame(size, {}))
        return [number("subi", SP, SP, size)]

    def restore(self) -> list[int]:
        words = self.restoring()
        self._frames.pop()
        return words

    def restoring(self) -> list[int]:
        """Return the words that restore the innermost frame, which stays."""
        frame = self._frames[-1]
        if not frame.slots:
            return [number("addi", SP, SP, frame.size)] if frame.size else []
        words: list[int] = []
        for names_there, at in reversed(_grouped(frame.slots)):
            words.append(_access("pop", "ldr", names_there, at, frame.size))
            if FLAGS in names_there:
                words.append(plain("set_nzcv", SCRATCH))
        return words

    def read(self, to: str, name: str) -> int:
        """Load the saved value of `name` into a general register."""
        above = 0
        for frame in reversed(self._frames):
            if name in frame.slots:
                return scaled("ldr", to, SP, above + frame.slots[name], WORD)
            above += frame.size
        raise KeyError(name)


def _planned(names: Sequence[str]) -> _Frame:
    """Return a frame for these. The flags are last: they are restored first, while SCRATCH is free."""
    ordered = [*(name for name in names if name != FLAGS), *(name for name in names if name == FLAGS)]
    return _Frame(-(-WORD * len(ordered) // 16) * 16, {name: WORD * index for index, name in enumerate(ordered)})


def _grouped(slots: Mapping[str, int]) -> list[tuple[tuple[str, ...], int]]:
    """Return pairs of general registers, and what is single, with where they are."""
    general = [name for name in slots if name != FLAGS]
    groups = [tuple(general[at : at + 2]) for at in range(0, len(general), 2)]
    return [(group, slots[group[0]]) for group in (*groups, *([(FLAGS,)] if FLAGS in slots else []))]


def _access(moving: str, still: str, names: Sequence[str], at: int, size: int) -> int:
    """Encode a save or a restore. moving: what moves sp by `size`, at the lowest slots."""
    registers = [SCRATCH if name == FLAGS else name for name in names]
    first, *others = registers
    if not others:
        return moved(moving, first, size) if at == 0 else scaled(still, first, SP, at, WORD)
    (second,) = others
    return pair(f"{moving}_pair", first, second, size) if at == 0 else pair(f"{still}_pair", first, second, at)


def registers_to_spill(used: Collection[str], before: EntryState) -> tuple[str, ...]:
    """Do as Backend.kept."""
    dead = before.dead.registers
    general = [name for name in GENERAL if name in used and (name in before.reads or name not in dead)]
    wanted = FLAGS in used and (FLAGS in before.reads or not before.dead.flags)
    return (*general, *((FLAGS,) if wanted else ()))
