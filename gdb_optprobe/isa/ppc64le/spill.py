"""Save the registers that a program changes, and restore them.

General registers go to CTR and LR, and a field of CR to another one, if these are dead and have room for all. Else
there is a frame:

    r1 ─►  0  back chain, to the former r1
           8  r0                              one lq restores it and r1, if the frame has writer.FRAME bytes
          32  pairs of registers (stq), then single ones; CR or a field of it, through r0
           …  the first frame only: the 288 bytes that the interrupted function may use (ELFv2 ABI, 2.2.2.4)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from gdb_optprobe.isa.codegen import EntryState
from gdb_optprobe.isa.ppc64le.abi import CR_FIELDS, CTR, FLAGS, GENERAL, HEADER, LR, RED_ZONE, SP
from gdb_optprobe.isa.ppc64le.encodings import copy_field, get_field, number, plain, set_field
from gdb_optprobe.isa.ppc64le.templates import templates, word
from gdb_optprobe.isa.ppc64le.writer import BESIDE_CHAIN, FRAME

R0 = "r0"


@dataclass(frozen=True, slots=True)
class _Frame:
    """Saved registers. size: of the frame, 0 without one. slots: offsets from r1 by name. moved: others by name."""

    size: int
    slots: Mapping[str, int]
    moved: Mapping[str, str]


_ASSUMED = _Frame(FRAME, {}, {})
"""Of a `save` to come: what is saved behind it has a frame below, and CTR, LR and the dead fields of CR to itself."""


class Spills:
    """Frames, the innermost last.

    fields: dead fields of CR, to hold others.
    """

    def __init__(self, before: EntryState, fields: Sequence[str]) -> None:
        self._sprs = [spr for spr in (CTR, LR) if spr in before.dead.registers and spr not in before.reads]
        self._fields = fields
        self._frames: list[_Frame] = []
        self._relies = False  # whether a frame depends on the one that is assumed
        frame = self._planned(before.kept.names)
        self._frames.append(replace(frame, slots=_without(before.kept.but, frame.slots)))

    @property
    def depth(self) -> int:
        """Return by how many bytes r1 is lower than before the program."""
        return sum(frame.size for frame in self._frames)

    @property
    def uses_scratch(self) -> bool:
        """Return whether saving into the innermost frame uses r0."""
        return any(name not in GENERAL for name in self._frames[-1].slots)

    def has(self, name: str) -> bool:
        return any(name in frame.slots or name in frame.moved for frame in self._frames)

    def save(self, names: Sequence[str]) -> list[int]:
        """Save registers. r0 may change, if CR or a field of it is stored on the stack."""
        frame = self._planned(names)
        self._frames.append(frame)
        if not frame.size:
            return [_moved(place, name) for name, place in frame.moved.items()]
        words = [word("open_frame", number=-frame.size)]
        for name, at in sorted(frame.slots.items(), key=lambda slot: slot[1]):
            if name in GENERAL:
                words += _access("std", "save_pair", frame.slots, name, at)
            else:
                words += [_get(name), number("std", R0, SP, at)]
        return words

    def assume_frame(self) -> None:
        """Take a frame for granted that is saved into later."""
        self._frames.append(_ASSUMED)
        self._relies = False

    def may_save(self, names: Sequence[str]) -> bool:
        """Assume no frame any longer; return whether saving these leaves the frames since then as they are."""
        self._frames.pop()
        relies = self._relies
        return bool(self._planned(names).size) or not relies

    def restore(self) -> list[int]:
        words = self.restoring()
        self._frames.pop()
        return words

    def open_frame(self, size: int) -> list[int]:
        """Open a frame with `size` bytes from HEADER on, without saving anything."""
        self._relies = True
        frame = _Frame(HEADER + size + 15 + (0 if self.depth else RED_ZONE) & ~15, {}, {})
        self._frames.append(frame)
        return [word("open_frame", number=-frame.size)]

    def restoring(self) -> list[int]:
        """Return the words that restore the innermost frame, which stays."""
        frame = self._frames[-1]
        if not frame.size:
            return [_moved(name, place) for name, place in frame.moved.items()]
        words: list[int] = []
        for name, at in sorted(frame.slots.items(), key=lambda slot: slot[1], reverse=True):
            if name not in GENERAL:
                words += [number("ld", R0, SP, at), _set(name)]
            elif name != R0:
                words += _access("ld", "restore_pair", frame.slots, name, at)
        if R0 in frame.slots and frame.size == FRAME:
            return [*words, templates()["restore_pair"]]
        words += [number("ld", R0, SP, BESIDE_CHAIN)] if R0 in frame.slots else []
        return [*words, number("addi", SP, SP, frame.size)]

    def read(self, to: str, name: str) -> int:
        """Load the saved value of `name` into a general register."""
        above = 0
        for frame in reversed(self._frames):
            if name in frame.moved:
                return _moved(to, frame.moved[name])
            if name in frame.slots:
                return number("ld", to, SP, above + frame.slots[name])
            above += frame.size
        raise KeyError(name)

    def _planned(self, names: Sequence[str]) -> _Frame:
        self._relies = True
        taken = {place for frame in self._frames for place in frame.moved.values()}
        general = [name for name in names if name in GENERAL]
        flags = [name for name in names if name not in GENERAL]
        sprs = [spr for spr in self._sprs if spr not in taken]
        fields = [field for field in self._fields if field not in taken]
        if len(general) <= len(sprs) and len(flags) <= len(fields) and FLAGS not in flags:
            places = zip((*flags, *general), (*fields[: len(flags)], *sprs), strict=False)
            return _Frame(0, {}, dict(places))
        slots = _slots(general, flags)
        needed = max(HEADER, max(slots.values()) + 8) + 15 & ~15
        return _Frame(needed if self.depth else max(FRAME, needed + RED_ZONE), slots, {})


def _slots(general: Sequence[str], flags: Sequence[str]) -> dict[str, int]:
    slots = {R0: BESIDE_CHAIN} if R0 in general else {}
    at = HEADER
    others = [name for name in general if name != R0]
    paired = [name for name in others if _is_even(name) and _next(name) in others]
    for name in paired:
        slots |= {_next(name): at, name: at + 8}
        at += 16
    for name in (*(name for name in others if name not in slots), *flags):
        slots[name] = at
        at += 8
    return slots


def _without(but: str, slots: Mapping[str, int]) -> Mapping[str, int]:
    return {name: at for name, at in slots.items() if name != but}


def _is_even(name: str) -> bool:
    return GENERAL.index(name) % 2 == 0


def _next(name: str) -> str:
    return f"r{GENERAL.index(name) + 1}"


def _access(one: str, both: str, slots: Mapping[str, int], name: str, at: int) -> list[int]:
    """Save or restore a register; with the second of a pair also the first, the higher half of the quadword."""
    if _is_even(name):
        return [] if slots.get(_next(name)) == at - 8 else [number(one, name, SP, at)]
    first = f"r{GENERAL.index(name) - 1}"
    if slots.get(first) == at + 8:
        return [word(both, GENERAL.index(first), number=at)]
    return [number(one, name, SP, at)]


def _moved(to: str, source: str) -> int:
    """Move between a general register and CTR or LR, or between fields of CR."""
    if to in CR_FIELDS:
        return copy_field(CR_FIELDS.index(to), CR_FIELDS.index(source))
    return plain(f"mt{to}", source) if to in (CTR, LR) else plain(f"mf{source}", to)


def _get(name: str) -> int:
    return plain("mfcr", R0) if name == FLAGS else get_field(R0, CR_FIELDS.index(name))


def _set(name: str) -> int:
    return plain("mtcr", R0) if name == FLAGS else set_field(CR_FIELDS.index(name), R0)


def registers_to_spill(used: Collection[str], before: EntryState) -> tuple[str, ...]:
    """Do as Backend.kept."""
    dead = before.dead.registers | ({CR_FIELDS[0]} if before.dead.flags else frozenset())
    general = [name for name in GENERAL if name in used and (name in before.reads or name not in dead)]
    if FLAGS in before.reads:
        return (*general, *((FLAGS,) if any(field in used for field in CR_FIELDS) else ()))
    return (*general, *(field for field in CR_FIELDS if field in used and field not in dead))
