"""Text is shown without the branches of this session and of an earlier GDB."""

from __future__ import annotations

from collections.abc import Mapping

from gdb_optprobe.detours.patch import Patch
from gdb_optprobe.probes.spec import Spec
from gdb_optprobe.probes.unpatched_text import UnpatchedText
from tests.probes.threads import START, World


class Earlier:
    """See EarlierText: one byte was written over."""

    def uncovered(self, address: int, data: bytes) -> bytes:
        return data.replace(b"\xcc", b"\x55")

    def originals(self) -> Mapping[int, bytes]:
        return {START: b"\x55"}


def test_branches_of_this_session_are_not_seen() -> None:
    world = World()
    original = world.guest.machine.read(START, 16)
    unpatched = UnpatchedText(world.session.registry)
    world.session.add(Spec(f"*{START:#x}"))
    patched = world.guest.machine.read(START, 16)
    assert patched != original
    for start in range(8):
        assert unpatched(START + start, patched[start:]) == original[start:], "in whichever pieces it is read"
    assert unpatched.originals() == {}


def test_nor_what_an_earlier_gdb_wrote_once_it_is_known() -> None:
    unpatched = UnpatchedText()
    assert unpatched(START, b"\xcc\x90") == b"\xcc\x90"
    unpatched.earlier = Earlier()
    assert unpatched(START, b"\xcc\x90") == b"\x55\x90" and unpatched.originals() == {START: b"\x55"}


def test_nor_what_leads_traps_to_us() -> None:
    hook = Patch(START + 1, b"\xe8\x01", b"\xe8\x02")
    unpatched = UnpatchedText(hooks=lambda: (hook,))
    assert unpatched(START, b"\x90\xe8\x02\x90") == b"\x90\xe8\x01\x90"
    assert unpatched(START + 2, b"\x02\x90") == b"\x01\x90"
