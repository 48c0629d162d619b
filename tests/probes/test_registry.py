"""The registry holds probes of all kinds, with the same verbs; what a probe's record says restores it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.block import Block
from gdb_optprobe.detours.refusal import Refusal
from gdb_optprobe.detours.slots import Slot
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.maps.ring import START
from gdb_optprobe.probes import probe_views, site_views
from gdb_optprobe.probes.handler import Handler
from gdb_optprobe.probes.journal_records import ProbeRecord, restored_probe
from gdb_optprobe.probes.probe import Presence, Probe
from gdb_optprobe.probes.registry import Registry
from gdb_optprobe.probes.results import Results
from gdb_optprobe.probes.site import Site, SiteState
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.user.uprobe_site import UprobeSite
from gdb_optprobe.probes.views import CallsView
from tests.fake_guest import PLAIN, TRACED, program

ADDRESS, INODE = 0x40_1136, 0xFFFF_8880_0001_0000
GONE = Refusal.MODULE_GONE.because(module="dummy")


def kernel_site(address: int = PLAIN) -> Site:
    return Site(address, cast(Any, None))


def uprobe_site(address: int = ADDRESS) -> UprobeSite:
    of = SimpleNamespace(inode=INODE, offset=lambda at: at - 0x40_0000)
    return UprobeSite(cast(Any, of), cast(Any, SimpleNamespace(address=address)), False, b"\xcc", 1)


def probe(number: int, kind: Kind = Kind.KPROBE) -> Probe:
    return Probe(number, Spec("f", kind=kind), ADDRESS if kind.in_program else PLAIN)


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_added_and_removed_alike(kind: Kind) -> None:
    registry, made = Registry(), probe(7, kind)
    site: Site | UprobeSite = uprobe_site() if made.spec.in_program else kernel_site()
    registry.add(made, site)
    assert registry.has(made) and registry.probes() == [made] and site.probes == [made] and site.enabled == [made]
    assert made.presence is Presence.HERE and made.absence is None
    assert made.is_in_kernel is (not made.spec.in_program)
    assert [*registry.sites([made]), *registry.uprobe_sites([made])] == [site]
    assert [*registry.sites(), *registry.uprobe_sites()] == [site]
    registry.remove(made)
    assert not registry.has(made) and not registry.probes() and not site.probes
    assert not registry.sites() and not registry.uprobe_sites() and not registry.has_readers
    assert registry.next_number() == 8, "behind those that were there"


def test_probes_share_a_site_until_the_last_one_leaves() -> None:
    registry = Registry()
    pairs: tuple[tuple[Kind, Site | UprobeSite], ...] = ((Kind.KPROBE, kernel_site()), (Kind.UPROBE, uprobe_site()))
    for kind, site in pairs:
        first, second = probe(registry.next_number(), kind), probe(registry.next_number(), kind)
        registry.add(first, site)
        registry.add(second, site)
        assert [*registry.sites([first, second]), *registry.uprobe_sites([first, second])] == [site]
        registry.remove(first)
        assert site.probes == [second]
        registry.remove(second)
    assert not registry.sites() and not registry.uprobe_sites()


def test_a_probe_goes_with_its_module_and_comes_back() -> None:
    registry, made, site = Registry(), probe(1), kernel_site()
    registry.add(made, site)
    registry.set_absent(made, Presence.GONE, GONE)
    assert registry.has(made) and not registry.sites() and not site.probes
    assert (made.presence, made.absence, made.is_in_kernel) == (Presence.GONE, GONE, False)
    registry.set_absent(made, Presence.PENDING, GONE)
    assert made.presence is Presence.PENDING
    back = kernel_site(TRACED)
    made.address = TRACED
    registry.add(made, back)
    assert (made.presence, made.absence, registry.site_of(made)) == (Presence.HERE, None, back)
    registry.remove(made)
    assert not registry.sites()


def test_a_uprobe_that_left_its_site_is_known_until_it_is_removed() -> None:
    registry, made, site = Registry(), probe(1, Kind.UPROBE), uprobe_site()
    registry.add(made, site)
    registry.leave_site(made)
    assert registry.has(made) and not registry.uprobe_sites([made]) and not site.probes
    registry.remove(made)
    assert not registry.has(made)


@pytest.mark.parametrize("tier, state", [("optimized", SiteState.DETOUR), ("breakpoint", SiteState.BREAKPOINT)])
def test_a_site_says_what_is_in_the_guest(tier: str, state: SiteState) -> None:
    session = program().session()
    session.add(Spec(f"*{PLAIN:#x}", tier=tier))
    (site,) = session.registry.sites()
    seen = [site.state]
    session.disable()
    seen.append(site.state)
    session.enable()
    seen.append(site.state)
    session.registry.abandon()
    site.remove_breakpoint(session.target.guest, None)
    assert [*seen, site.state] == [state, SiteState.NOTHING, state, SiteState.LOST]


def test_rows_of_all_kinds_are_made_alike() -> None:
    session = program().session()
    (here,) = session.add(Spec(f"*{PLAIN:#x}"))
    guest = session.target.guest
    absent = Probe(2, Spec("dummy:f", pending=True), 0, enabled=False)
    absent.presence, absent.absence = Presence.PENDING, Refusal.PENDING.because(location="dummy:f", why="")
    row = probe_views.probe_view(absent, site_views.absent_site_view(absent, session.target), Results((0,)), guest)
    assert (row.state, row.tags, row.tier, row.address) == ("pending", ("PENDING", "DISABLED"), "", 0)
    assert row.reason is not None and row.reason.code == "PENDING" and not row.needs_gdb
    deleted = probe_views.deleted_view(Kind.URETPROBE, ADDRESS, "b:f", "f", CallsView(5, 3, 1, 1, 0), guest)
    assert (deleted.number, deleted.state, deleted.tags, deleted.actions) == (0, "deleted", ("DELETED",), ())
    assert (deleted.hits, deleted.active, deleted.missed, deleted.kind) == (3, 1, 1, "uretprobe")
    assert (here.state, here.tags, here.needs_gdb) == ("armed", ("OPTIMIZED",), False)
    assert here.patch_size == len(here.patched_bytes) == len(here.original_bytes) > 0


def record(**changes: Any) -> ProbeRecord:
    made = ProbeRecord(3, PLAIN, Spec("f"), False, False, 0x1000, 0, {"table_keys": 8}, START, (9,))
    return replace(made, **changes)


@pytest.mark.parametrize("kind", Kind)
def test_a_record_restores_a_probe_of_any_kind(kind: Kind) -> None:
    memory = Slot(0x1000, 8)
    made = restored_probe(record(spec=Spec("f", kind=kind)), ADDRESS, Handler(), memory)
    assert (made.number, made.address, made.counter, made.enabled) == (3, ADDRESS, memory, False)
    assert (made.sizes, made.seen.hits, made.spec.kind) == ({"table_keys": 8}, 9, kind)


def test_a_record_of_other_memory_restores_nothing() -> None:
    with pytest.raises(OptprobeError, match="would not do here"):
        restored_probe(record(), PLAIN, Handler(), Slot(0x1000, 4))


class FewCounts(Block):
    """A block as far as the registry asks where its members are."""

    def __init__(self, first: int, sites: Sequence[int]) -> None:
        slot = Slot(0, 16 * len(sites))
        super().__init__(sites=array("Q", sites), originals=[b"\0"] * len(sites), code=slot, data=slot, step=16)
        self.first, self.enabled, self.numbers = first, True, range(first, first + len(sites))


def test_where_blocks_have_members_is_known_as_they_come_and_go() -> None:
    registry, unpacked = Registry(), list[int]()

    def unpack(block: Block, index: int) -> None:
        unpacked.append(block.sites[index])
        block.take_out(index)

    registry.unpack = unpack
    blocks = [FewCounts(1, (0x100, 0x400)), FewCounts(3, (0x108, 0x300))]

    def there(start: int, end: int) -> bool:
        return registry.has_enabled(start, end)

    assert not there(0, 0x1000)
    for block in blocks:
        registry.add_block(cast(Any, block))
    assert there(0x108, 0x109) and there(0x109, 0x301) and not there(0x109, 0x300) and not there(0x401, 0x1000)
    assert registry.has_other(0x100, 0x110, 0x100) and not registry.has_other(0x300, 0x308, 0x300)
    assert registry.has_other(0x2F8, 0x308, 0x2F8) and not registry.has_other(0x410, 0x420, 0x410)
    blocks[1].enabled = False
    assert not there(0x108, 0x109) and there(0x100, 0x109)
    assert registry.site(0x300) is None and unpacked == [0x300]
    assert not registry.has_other(0x2F8, 0x308, 0x2F8), "it has left its block"
    registry.remove_block(cast(Any, blocks[0]))
    blocks[1].enabled = True
    assert not there(0x100, 0x108) and there(0x100, 0x109) and not there(0x300, 0x301)
