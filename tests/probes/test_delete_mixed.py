"""Where a probe cannot be removed, others of the same `delete` are, and what its traps come to stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.probes.installed_detour import install_pad
from gdb_optprobe.probes.probe import Probe
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.user.uprobe_site import UprobeSite
from gdb_optprobe.probes.user.uprobe_stops import _InstalledPad
from tests.fake_guest import HANDLER, PLAIN, FakeGuest, program


def with_uprobe(guest: FakeGuest) -> tuple[Session, Any, list[str]]:
    """Return a session with kprobe 1 and uprobe 2, the traps of which are in a process, and what was removed."""
    session = guest.session()
    session.add(Spec(f"*{PLAIN:#x}", condition="$rax > 3"))
    arena = session.optimizer.arena
    assert arena is not None
    cast(Any, guest.stops).shows_program = lambda: False
    (insn, *_) = guest.isa.decode(b"\x90", 0x401000)
    held: Any = SimpleNamespace(inode=7, offset=lambda at: at)
    site = UprobeSite(held, insn, False, b"\xcc", 1, installed=cast(Any, object()), settled_for=frozenset({2}))
    session.registry.add(Probe(2, Spec("/bin/a:main", kind=Kind.UPROBE, actions=("stop",)), 0x401000), site)
    session.uprobes.__dict__["user"] = SimpleNamespace(
        texts=SimpleNamespace(check_remove=lambda *_: None), kernel=SimpleNamespace(calls=SimpleNamespace(beside=()))
    )
    pad = install_pad(HANDLER, b"\x90\xc3", guest, arena)
    session.uprobes.stops._pads[1] = _InstalledPad(pad, guest.stops.set(pad.address, lambda hit: None), cast(Any, None))
    dispatcher = session.uprobes.traps.dispatcher
    dispatcher._codes = {site.key: 0x1234}
    dispatcher._installed = cast(Any, SimpleNamespace(patches=(Patch(HANDLER, b"\x0f", b"\x0f"),)))
    removed: list[str] = []

    def settle(point: UprobeSite, user: object, arena: object) -> None:
        assert not point.enabled
        removed.append("traps")
        point.installed = None
        dispatcher._codes.clear()

    session.uprobes._settle = settle  # type: ignore[method-assign]
    return session, site, removed


def test_a_uprobe_is_removed_though_a_kprobe_of_the_same_delete_cannot_be() -> None:
    guest = program()
    session, site, removed = with_uprobe(guest)
    guest.machine.write(PLAIN, b"\xcc")
    with pytest.raises(OptprobeError, match="1 of 2 probes are left in the guest"):
        session.delete()
    assert removed == ["traps"] and site.installed is None


def test_the_pad_of_a_trap_that_is_in_a_process_stays() -> None:
    guest = program()
    session, site, _ = with_uprobe(guest)
    (one,) = session.uprobes.stops._pads.values()
    guest.machine.write(PLAIN, b"\xcc")
    with pytest.raises(OptprobeError):
        session.delete()
    session.uprobes.tidy()  # as commit, and the next add or delete
    session.optimizer.reclaim()
    assert site.installed is None or guest.machine.read(one.pad.address, 2) == b"\x90\xc3"


def test_what_traps_come_to_stays_where_they_could_not_be_removed() -> None:
    guest = program()
    session, *_ = with_uprobe(guest)
    (one,) = session.uprobes.stops._pads.values()

    def stays(point: UprobeSite, user: object, arena: object) -> None:
        raise OptprobeError("a page of the process is not in memory")

    session.uprobes._settle = stays  # type: ignore[method-assign]
    with pytest.raises(OptprobeError, match="a page of the process is not in memory"):
        session.delete([2])
    session.uprobes.tidy()
    session.optimizer.reclaim()
    assert guest.machine.read(one.pad.address, 2) == b"\x90\xc3"
