"""Blocks of counts that an earlier version has written otherwise: taken over as they are, and taken away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gdb_optprobe.isa.base import Dead, padded
from gdb_optprobe.isa.record import Isa
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.recovery import adopt
from tests.detours.fakes import code
from tests.fake_guest import FakeGuest
from tests.probes.test_batch import COUNT, LOOP, functions, run, text
from tests.probes.test_keyed_routine import empty

NOP = code("90  nop")


class _Earlier(type(X86_64)):  # type: ignore[misc]  # the class has no name that others use
    """With a nop before each count."""

    @staticmethod
    def count(counter: int, to: int, dead: Dead, base: int | None = None) -> bytes:
        return NOP + X86_64.count(counter, to + 1, dead, base)

    @staticmethod
    def counts(
        at: int, step: int, counters: Sequence[int], ends: Sequence[int], dead: Dead, moved: bytes = b""
    ) -> bytes:
        places = range(at, at + step * len(counters), step)
        pieces = [_Earlier.count(counter, to, dead) + moved for to, counter in zip(places, counters, strict=True)]
        return padded(pieces, at, step, ends, X86_64.branch, X86_64.breakpoint)


class _Later(type(X86_64)):  # type: ignore[misc]
    earlier: Sequence[Isa] = (_Earlier(),)


def untraced() -> FakeGuest:
    """Return a guest of the same functions, of which none has a tracer's site."""
    traced = functions()
    guest = FakeGuest([replace(body, tracer=None) for body in traced.bodies])
    guest.start_threads(LOOP)
    return guest


def test_code_that_no_version_has_written_is_left() -> None:
    guest = functions()
    guest.isa = _Earlier()
    guest.session().add(Spec("f*", glob=True))
    later = guest.after(())
    later.isa = X86_64
    recovered = adopt.recover(later.session())
    assert not recovered.probes and len(recovered.lost) == 1
    assert text(later) == text(functions())


@pytest.mark.parametrize("made", [functions, untraced])
def test_a_block_of_an_earlier_version_is_taken_over(made: Callable[[], FakeGuest]) -> None:
    guest = made()
    guest.isa = _Earlier()
    session = guest.session()
    session.add(Spec("f*", glob=True))
    assert [len(one) for one in session.registry.blocks] == [COUNT]
    run(guest)
    later = guest.after(())
    later.isa = _Later()
    other = later.session()
    recovered = adopt.recover(other)
    assert not recovered.lost and [len(one) for one in other.registry.blocks] == [COUNT]
    assert other.check() == ()
    run(later)
    assert len({view.hits for view in other.reports()}) == 1
    (number, *_) = [view.number for view in other.reports()]
    other.disable([number])
    other.enable([number])
    assert other.check() == ()
    other.delete()
    run(later)
    assert text(later) == text(made()) and empty(other)
