"""The guest's records of its tracer's sites: a site with a branch is disabled there, and enabled as late as is safe."""

from __future__ import annotations

from struct import pack, unpack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.refusal import Refused
from gdb_optprobe.errors import Unreadable
from gdb_optprobe.guest.linux.arch.x86_64 import nops
from gdb_optprobe.guest.linux.ftrace_sites import DISABLED, FtraceSites
from gdb_optprobe.guest.linux.loaded_text import LoadedText
from gdb_optprobe.guest.text import FtraceSite
from gdb_optprobe.probes import site_tracer
from gdb_optprobe.probes.site_tracer import SiteTracer
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT, RECORDS, OPS = 0xFFFFFFFF81000000, 0xFFFFFFFF82000000, 0xFFFFFFFF82001000
NAMES = {"ftrace_pages_start": OPS, "ftrace_ops_list": OPS + 8, "ftrace_list_end": OPS + 0x40}
SITE, OTHER = (FtraceSite(TEXT + at, 5, False, bytes(5)) for at in (0, 0x100))


class World:
    """A tracer of two sites, and what it has in the guest: flags of each, and whether it runs."""

    def __init__(self, *flags: int) -> None:
        self.memory = Pages()
        self.memory.put_words(OPS, RECORDS)
        self.memory.put(RECORDS, pack("<QQii", 0, RECORDS + 0x40, len(flags), 0))
        for number, flag in enumerate(flags):
            self.memory.put_words(RECORDS + 0x40 + 16 * number, TEXT + 0x100 * number, flag)
        self.trace(False)
        self.ftrace = FtraceSites(kernel(self.memory, NAMES), nops.SITE)
        self.text = SimpleNamespace(
            ftrace=self.ftrace, ftrace_of=lambda address: self.ftrace, own=(TEXT, RECORDS), spell=hex
        )
        self.tracer = SiteTracer(cast(LoadedText, self.text), cast(Any, self.memory))

    def trace(self, runs: bool) -> None:
        self.memory.put_words(OPS + 8, OPS + 0x80 if runs else OPS + 0x40)

    def flags(self, site: FtraceSite) -> int:
        record = self.ftrace.record(site.address)
        assert record is not None
        return record.flags


def test_a_site_is_disabled_while_a_branch_is_there() -> None:
    world = World(1 << 20, 0)
    world.tracer.hold(SITE)
    assert (world.flags(SITE), world.flags(OTHER)) == (1 << 20 | DISABLED, 0)
    world.tracer.release(SITE)
    assert world.flags(SITE) == 1 << 20, "its history is left alone"


def test_a_site_that_a_tracer_uses_is_refused_and_left_alone() -> None:
    world = World(1)
    with pytest.raises(Refused) as refused:
        world.tracer.hold(SITE)
    assert refused.value.reason.code == "FTRACE_IN_USE" and world.flags(SITE) == 1


def test_a_site_stays_disabled_until_no_tracer_runs() -> None:
    """A tracer that was started meanwhile has not counted the site, and would uncount it."""
    world = World(0, 0)
    world.tracer.hold(SITE)
    assert world.tracer.passed_over() == ()
    world.trace(True)
    assert world.tracer.passed_over() == (SITE.address,)
    world.tracer.release(SITE)
    world.tracer.hold(OTHER)
    assert world.flags(SITE) == DISABLED and world.tracer.passed_over() == (SITE.address, OTHER.address)
    world.trace(False)
    world.tracer.give_back()
    assert (world.flags(SITE), world.flags(OTHER)) == (0, DISABLED) and world.tracer.passed_over() == ()


def test_a_site_that_is_owed_is_held_again_as_it_is() -> None:
    world = World(0)
    world.tracer.hold(SITE)
    world.trace(True)
    world.tracer.release(SITE)
    world.tracer.hold(SITE)
    world.trace(False)
    world.tracer.give_back()
    assert world.flags(SITE) == DISABLED
    world.tracer.release(SITE)
    assert world.flags(SITE) == 0


def test_a_site_that_a_tracer_is_still_kept_off_can_be_held_with_others() -> None:
    world = World(0, 1 << 20)
    world.tracer.hold(SITE)
    world.trace(True)
    world.tracer.release(SITE)
    assert world.tracer.kept_off == {SITE.address}
    world.tracer.hold_all([SITE.address, OTHER.address])
    assert world.tracer.kept_off == frozenset()
    assert (world.flags(SITE), world.flags(OTHER)) == (DISABLED, 1 << 20 | DISABLED)
    world.trace(False)
    world.tracer.release_all([SITE.address, OTHER.address])
    assert (world.flags(SITE), world.flags(OTHER)) == (0, 1 << 20)


def test_of_sites_that_are_held_together_none_is_where_a_tracer_uses_one() -> None:
    world = World(0, 1)
    with pytest.raises(Refused):
        world.tracer.hold_all([SITE.address, OTHER.address])
    assert (world.flags(SITE), world.flags(OTHER)) == (0, 1) and world.tracer.kept_off == frozenset()


@pytest.mark.parametrize("forgets", [True, False])
def test_nothing_is_written_for_a_site_that_was_unloaded(forgets: bool) -> None:
    """Its record is another site's by then, whether the probe's end or the module's is seen first."""
    world = World(0)
    world.tracer.hold(SITE)
    world.memory.put_words(RECORDS + 0x40, TEXT + 0x5000)
    if forgets:
        world.tracer.forget(SITE)
    else:
        world.tracer.release(SITE)
    world.tracer.give_back()
    assert world.memory.read(RECORDS + 0x48, 8) == DISABLED.to_bytes(8, "little")
    assert world.tracer.passed_over() == ()


def test_a_site_that_could_not_be_given_back_is_given_back_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(0)
    world.tracer.hold(SITE)

    def fail(*_: object) -> None:
        raise Unreadable(RECORDS, 8)

    with monkeypatch.context() as patched, pytest.raises(Unreadable):
        patched.setattr(world.memory, "write", fail)
        world.tracer.release(SITE)
    assert world.flags(SITE) == DISABLED
    world.tracer.give_back()
    assert world.flags(SITE) == 0


MODULE = FtraceSite(0xFFFFFFFFC0000000, 5, False, bytes(5))
PAGE, LOADED, AGAIN = RECORDS + 0x700, RECORDS + 0x800, RECORDS + 0x900


class WorldOfModule(World):
    """It has a module of one site too; the record of that was where those of the kernel's own sites are."""

    def __init__(self) -> None:
        super().__init__(0)
        self.memory.put(RECORDS, pack("<QQii", PAGE, RECORDS + 0x40, 1, 0))
        self.load(LOADED)
        assert self.ftrace.record_at[MODULE.address] == LOADED
        self.text.ftrace_of = lambda address: self.of_module() if address >= MODULE.address else self.ftrace

    def of_module(self) -> FtraceSites:
        return FtraceSites(kernel(self.memory, NAMES), nops.SITE, of=(MODULE.address, MODULE.address + 0x1000))

    def load(self, record: int, flags: int = 0) -> None:
        """Load it at the same address as before, with its record at `record`."""
        self.memory.put(PAGE, pack("<QQii", 0, record, 1, 0))
        self.memory.put_words(record, MODULE.address, flags)

    def words(self, record: int) -> tuple[int, int]:
        return unpack("<QQ", self.memory.read(record, 16))


@pytest.mark.parametrize("left", [(0x1234, 0x5678), (MODULE.address, 0)], ids=["used-again", "as-it-was"])
def test_the_record_of_a_module_that_was_loaded_again_is_that_of_now(left: tuple[int, int]) -> None:
    """Its old record is freed, whatever is there."""
    world = WorldOfModule()
    world.load(AGAIN)
    world.memory.put_words(LOADED, *left)
    world.tracer.hold_all([SITE.address, MODULE.address])
    assert world.words(LOADED) == left and world.words(AGAIN) == (MODULE.address, DISABLED)
    world.tracer.release_all([SITE.address, MODULE.address])
    assert world.words(LOADED) == left and world.words(AGAIN) == (MODULE.address, 0) and world.flags(SITE) == 0


def test_what_is_owed_is_given_back_where_a_module_was_loaded_again() -> None:
    world = WorldOfModule()
    for site in (MODULE, SITE):
        world.tracer.hold(site)
    world.trace(True)
    for site in (MODULE, SITE):
        world.tracer.release(site)
    world.load(AGAIN, DISABLED)
    world.memory.put_words(LOADED, 0x1234, 0x5678)
    world.trace(False)
    world.tracer.give_back()
    assert world.flags(SITE) == 0 and world.words(LOADED) == (0x1234, 0x5678)
    assert world.tracer.kept_off == frozenset()


USED = 3
FLAGS = [0, 1 << 20, 0, USED] * (site_tracer.MANY * 9 // 16)
HELD = [TEXT + 0x100 * number for number, word in enumerate(FLAGS) if number % 3 and word != USED]


def hold_many() -> tuple[World, bytes]:
    """Return a tracer that is kept off half of the sites, with the records as they were before."""
    world = World(*FLAGS)
    before = records(world)
    world.tracer.hold_all(HELD)
    assert records(world) != before
    return world, before


def records(world: World) -> bytes:
    return world.memory.read(RECORDS + 0x40, 16 * len(FLAGS))


def test_many_are_given_back_as_they_were() -> None:
    world, before = hold_many()
    world.tracer.release_all(HELD)
    assert records(world) == before and world.tracer.kept_off == frozenset()


def test_what_a_tracer_has_counted_between_many_is_kept() -> None:
    """A record near optprobe's has another word when they are given back."""
    world, before = hold_many()
    world.memory.put_words(RECORDS + 0x40 + 16 * 6 + 8, 1)
    world.tracer.release_all(HELD)
    assert records(world) == before[: 16 * 6 + 8] + (1).to_bytes(8, "little") + before[16 * 7 :]


def test_of_many_one_that_is_another_site_s_by_then_is_left_alone() -> None:
    world, before = hold_many()
    place = world.ftrace.record_at[HELD[1]]
    world.memory.put_words(place, TEXT + 0x500000, DISABLED)
    world.tracer.release_all(HELD)
    at = place - RECORDS - 0x40
    assert records(world) == before[:at] + pack("<QQ", TEXT + 0x500000, DISABLED) + before[at + 16 :]


@pytest.mark.parametrize("alone", [False, True])
def test_many_and_one_that_was_owed_are_all_given_back(alone: bool) -> None:
    """alone: the one was held by itself before, so that the others alone were disabled together."""
    world, before = hold_many()
    if alone:
        world.tracer.hold(SITE)
    world.trace(True)
    world.tracer.release_all([*HELD, SITE.address] if alone else HELD)
    world.tracer.hold_all(HELD[1:])
    world.tracer.release_all(HELD[1:])
    world.trace(False)
    world.tracer.give_back()
    assert records(world) == before and world.tracer.passed_over() == ()


def test_one_that_is_owed_is_given_back_with_many() -> None:
    world = World(*FLAGS)
    before = records(world)
    world.tracer.hold_all(HELD[:1])
    world.trace(True)
    world.tracer.release_all(HELD[:1])
    world.tracer.hold_all(HELD)
    world.trace(False)
    world.tracer.release_all(HELD)
    assert records(world) == before
