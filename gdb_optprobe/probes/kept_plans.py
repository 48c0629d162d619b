"""Plans of functions' entries in the cache on disk, for later boots of the same kernel.

    text and tables, settings ──hash──► plans-KEY:  rows, with all addresses from the text's start
The hash is of all that a plan depends on, as this guest has it now, where nothing else is in the function
(guest/lasting_text.py). Bytes are not kept: instructions are decoded from this guest's text. A file that is damaged, or
has another format, or a row that does not fit the text, counts as missing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

from gdb_optprobe.detours.plan_request import TierLimits
from gdb_optprobe.detours.planner import Plan
from gdb_optprobe.detours.refusal import Reason, Refusal, Spelled
from gdb_optprobe.detours.tier import Tier
from gdb_optprobe.guest.cache import version_of
from gdb_optprobe.guest.lasting_text import LastingText
from gdb_optprobe.guest.text import Text
from gdb_optprobe.isa.base import Dead, Insn
from gdb_optprobe.isa.record import Isa

FORMAT = 2
PLANNERS = "detours", "guest", "isa"
"""What makes plans: with another version of it nothing that was kept is used."""
COLUMNS = 11
MOST, MOST_DISPLACED, MOST_REFUSED = 1 << 18, 16, 8
"""Rows, instructions of a plan, better tiers that were refused."""
LONGEST_TEXT = 1 << 10
FARTHEST = 1 << 31
ADDRESS = re.compile(r"0x[0-9a-f]{9,}")
"""In the words of a reason: an address, which is another one in the next boot."""
ENVIRONMENT = ("ARENA_", "BOOTING", "USER_BREAKPOINT", "OVERLAPS_PROBE")
"""What the codes of refusals begin with that do not depend on the text."""

Row = list[Any]
Decoded = dict[bytes, tuple[Insn, ...]]
"""Instructions that are the same but for their address wherever these bytes are."""


class _Unfit(Exception):
    """A plan that cannot be kept, or a row that is none."""


@dataclass(frozen=True, slots=True)
class KeptPlans:
    """The plans of a `text` that lasts, with these limits."""

    of: LastingText
    limits: TierLimits
    isa: Isa
    text: Text

    @property
    def name(self) -> str:
        return f"plans-{_key(self.of, self.limits, self.isa)}"

    def load(self, addresses: Collection[int]) -> Iterator[Plan]:
        """Yield the plans that are kept of `addresses`."""
        rows = {self.of.base + row[0]: row for row in self._kept() if self.of.base + row[0] in addresses}
        text = self.of.read(self.of.base, self.of.base + self.of.size) if rows else b""
        at_hand = replace(self, of=replace(self.of, read=lambda start, end: _part(text, start, end, self.of.base)))
        decoded = at_hand._decoded_together(rows.values())
        for address in sorted(self.of.covers(rows)):
            try:
                yield at_hand._plan(self._address(address - self.of.base), rows[address], decoded)
            except (_Unfit, ValueError, TypeError, KeyError, IndexError):
                continue

    def store(self, plans: Iterable[Plan]) -> None:
        """Keep `plans` for later boots: those that depend on the text alone, beside those that are kept."""
        new, made = list[Row](), {plan.address: plan for plan in plans}
        for address in self.of.covers(made):
            with suppress(_Unfit):
                new.append(self._row(made[address]))
        if not new:
            return
        known = {row[0]: row for row in self._kept()}
        rows = known | {row[0]: row for row in new}
        if rows != known and len(rows) <= MOST:
            self.of.shelf.store_rows(self.name, FORMAT, [rows[at] for at in sorted(rows)])

    def _kept(self) -> list[Row]:
        return self.of.shelf.rows(self.name, FORMAT, COLUMNS, MOST)

    # a row -----------------------------------------------------------------------------------------------------------

    def _row(self, plan: Plan) -> Row:
        if plan.ftrace is not None or plan.moved is not None or plan.stays is not None:
            raise _Unfit
        if plan.reason != (plan.refused[0][1] if plan.refused else None):
            raise _Unfit
        return [
            plan.address - self.of.base,
            plan.tier.value,
            plan.address - plan.head,
            [insn.size for insn in plan.displaced],
            len(plan.original),
            int(plan.dead.flags),
            " ".join(sorted(plan.dead.registers)),
            int(plan.needs_quiescence),
            plan.near - self.of.base if plan.near is not None else None,
            plan.base - self.of.base if plan.base is not None else None,
            [[tier.value, *self._packed(reason)] for tier, reason in plan.refused],
        ]

    def _plan(self, address: int, row: Row, decoded: Decoded) -> Plan:
        _, tier, back, sizes, patched, flags, registers, waits, near, base, refused = row
        if not 0 < len(sizes) <= MOST_DISPLACED or len(refused) > MOST_REFUSED or flags not in (0, 1):
            raise _Unfit
        if not isinstance(registers, str):
            raise _Unfit
        head = address - _natural(back)
        displaced = self._decoded(head, [_natural(size) for size in sizes], decoded)
        if back and address not in {insn.address for insn in displaced}:
            raise _Unfit
        reasons = tuple((Tier(better), self._unpacked(code, facts)) for better, code, facts in refused)
        return Plan(
            address,
            Tier(tier),
            displaced,
            original=self._read(head, _natural(patched)),
            dead=_dead(flags, registers),
            base=self.of.base + _distance(base) if base is not None else None,
            needs_quiescence=bool(waits),
            reason=reasons[0][1] if reasons else None,
            refused=reasons,
            near=self._address(near) if near is not None else None,
        )

    def _decoded(self, head: int, sizes: list[int], decoded: Decoded) -> tuple[Insn, ...]:
        """decoded: what was decoded of other rows, which is added to."""
        data = self._read(head, sum(sizes))
        found = decoded.get(data)
        if found is None:
            found = tuple(self.isa.decode(data, head))
            if all(map(self.isa.moves_as_it_is, found)):  # functions begin alike: elsewhere it differs by address alone
                decoded[data] = found
        elif (by := head - found[0].address):
            new = tuple.__new__  # Insn's own constructor takes three times as long
            found = tuple([new(Insn, (at + by, *rest)) for at, *rest in found])
        if [insn.size for insn in found] != sizes:
            raise _Unfit
        return found

    def _decoded_together(self, rows: Iterable[Row]) -> Decoded:
        """Decode what thousands of rows displace at once, each text that begins many functions once."""
        pieces = set[bytes]()
        for row in rows:
            with suppress(_Unfit, TypeError):
                pieces.add(self._read(self._address(row[0]) - _natural(row[2]), sum(map(_natural, row[3]))))
        ordered = sorted(pieces)
        insns = iter(self.isa.decode(b"".join(ordered), self.of.base))
        found: Decoded = {}
        for piece in ordered:
            some, size = list[Insn](), 0
            while size < len(piece) and (insn := next(insns, None)) is not None:
                some.append(insn)
                size += len(insn.data)
            if size != len(piece):
                break  # it is not whole: each of the others is decoded by itself
            if all(map(self.isa.moves_as_it_is, some)):
                found[piece] = tuple(some)
        return found

    def _read(self, address: int, size: int) -> bytes:
        if not self.of.base <= address <= address + size <= self.of.base + self.of.size:
            raise _Unfit
        return self.of.read(address, address + size) if size else b""

    def _address(self, offset: object) -> int:
        address = self.of.base + _natural(offset)
        if address >= self.of.base + self.of.size:
            raise _Unfit
        return address

    def _packed(self, reason: Reason) -> tuple[str, dict[str, object]]:
        """Return the code of a reason and its facts, addresses as lists of one number."""
        if reason.code.startswith(ENVIRONMENT) or (reason.wording, reason.advice) != Refusal[reason.code].value:
            raise _Unfit
        return reason.code, {name: self._fact(value) for name, value in reason.facts}

    def _fact(self, value: object) -> object:
        if isinstance(value, Spelled):
            return [value.address - self.of.base]
        if isinstance(value, str) and len(value) <= LONGEST_TEXT and not ADDRESS.search(value):
            return value
        if type(value) is int:
            return value
        raise _Unfit

    def _unpacked(self, code: str, facts: Mapping[str, object]) -> Reason:
        if not isinstance(facts, dict):
            raise _Unfit
        # What has places that are spelled is tried without: nothing is looked up for it.
        trial = {name: "" if isinstance(value, list) else value for name, value in facts.items()}
        if "{" in str(Refusal[code].because(**trial)):  # raises KeyError where some are missing; of none, a template
            raise _Unfit
        return Refusal[code].because(**{name: self._known(value) for name, value in facts.items()})

    def _known(self, value: object) -> object:
        if isinstance(value, list):
            (offset,) = value
            if type(offset) is not int:
                raise _Unfit
            return Spelled(self.text.spell, self.of.base + offset)
        if isinstance(value, str | int):
            return value
        raise _Unfit


def _part(text: bytes, start: int, end: int, base: int) -> bytes:
    return text[start - base : end - base]


@lru_cache(256)
def _dead(flags: int, registers: str) -> Dead:
    return Dead(bool(flags), frozenset(registers.split()))


def _distance(value: object) -> int:
    """Return how far from the text a register points that its code sets: to data of the same image."""
    if type(value) is not int or abs(value) > FARTHEST:
        raise _Unfit
    return value


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise _Unfit
    return value


def _key(of: LastingText, limits: TierLimits, isa: Isa) -> str:
    """Return the hash of all that a plan depends on."""
    words = (
        isa.name,
        of.key,
        limits.optimization,
        limits.boost,
        limits.emulation,
        limits.trap,
        limits.forced.value if limits.forced is not None else "",
        limits.post_handler,
        limits.python_handler,
        limits.stacks_missing,
        limits.trap_missing,
        [(start - of.base, end - of.base) for start, end in limits.trap_paths],
    )
    return sha256(version_of(*PLANNERS) + repr(words).encode()).hexdigest()
