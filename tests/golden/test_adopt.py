"""A session takes over probes that another version left: the guest is the memory and the threads of guest_adopted.txt.

A kprobe with a condition, a histogram, a map and records; a kretprobe that keeps something at the entry, with a call
under way; a trapped one; one that stops the guest; a disabled one.
"""

from __future__ import annotations

from gdb_optprobe.commands.render_json import Json
from gdb_optprobe.probes.session import Session
from gdb_optprobe.recovery import adopt
from tests.fake_guest import CODE, DATA, FILL, THREADS, FakeGuest
from tests.golden import golden, probed_guest
from tests.golden.probed_guest import LOOP


def as_it_was() -> FakeGuest:
    memory, threads = b"", []
    for line in golden("guest_adopted.txt").splitlines():
        what, data = line.split(": ")
        if what == "thread":
            threads.append(tuple(int(word, 16) for word in data.split()))
        else:
            byte, _, count = data.partition(" * ")
            memory += bytes.fromhex(byte) * int(count or 1)
    return probed_guest.guest(memory, threads)


def reported(session: Session) -> str:
    """What was counted, and how each probe is; without wording, and without what code of today costs."""
    lines: list[str] = []
    Json(lines.append).report(session.reports())
    states = [f"{view.number} {view.kind} {view.state} {' '.join(view.tags)}".strip() for view in session.views()]
    counted = (line for line in "".join(lines).splitlines(keepends=True) if '"cost"' not in line)
    return "".join([*counted, *(f"{state}\n" for state in states)])


def test_probes_of_another_version_are_adopted() -> None:
    guest, alone = as_it_was(), probed_guest.guest()
    session = guest.session()
    assert adopt.recover(session).lost == ()
    assert session.check() == ()
    assert reported(session) == golden("adopted.txt")
    for number in range(THREADS):
        guest.run_to(number, LOOP)
    (kretprobe,) = session.views([2])
    assert kretprobe.calls is not None and (kretprobe.calls.active, kretprobe.calls.dropped) == (0, 0)
    session.delete()
    session.commit(0)
    assert session.optimizer.release_arena()
    assert guest.read_text() == alone.read_text()
    assert set(guest.machine.read(CODE, DATA - CODE)) == {FILL}


def test_probes_of_another_version_are_taken_out() -> None:
    guest, alone = as_it_was(), probed_guest.guest()
    session = guest.session()
    for number in range(THREADS):
        guest.run_to(number, LOOP)
    assert adopt.remove(session, 0) == len(probed_guest.SPECS)
    assert guest.read_text() == alone.read_text()
