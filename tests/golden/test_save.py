"""The file that `optprobe save` writes, which a later version is to source."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from gdb_optprobe.commands.parse import parse_add
from gdb_optprobe.detours.refusal import Refusal
from gdb_optprobe.guest.linux.event_name import EventName
from gdb_optprobe.handlers.source import Fragment
from gdb_optprobe.probes.probe import Presence, Probe
from gdb_optprobe.probes.save import commands, with_variables
from gdb_optprobe.probes.settings import ArenaRanges, Settings
from gdb_optprobe.probes.spec import Kind, Spec
from gdb_optprobe.probes.target import Target
from tests.golden import golden

STARTS = 0xFFFF_FFFF_8100_0000
AT = STARTS + 0x1230
SYMBOLS = {"vfs_read": AT, "vfs_write": AT + 0x100, "*_stext+0": STARTS, "dummy:dummy_xmit": AT + 0x200}
ENTRY = {"entry_condition": Fragment.whole("fd > 2"), "entry_actions": (Fragment.whole("save n = count"),)}
SPECS = (
    Spec("vfs_read"),
    Spec("vfs_read", condition="count > $limit", actions=("count by ($comm, $cpu)", 'print("%s\\n", $comm)'), name="r"),
    Spec(f"*{AT + 0x24:#x}", tier="boosted"),
    Spec("vfs_write", kind=Kind.KRETPROBE, condition="$retval > 0", maxactive=9, **ENTRY),  # type: ignore[arg-type]
    Spec("/bin/busybox:main+4", kind=Kind.UPROBE, file="/tmp/a b", pid=3, actions=("count by $pid",)),
    Spec("/bin/busybox:main", kind=Kind.URETPROBE, actions=("hist($retval)",)),
    Spec("dummy:dummy_xmit", pending=True),
    Spec("vfs_*", glob=True),
    Spec("vfs_read", pre_handler=print),
    Spec("vfs_read", actions=("record(count)",), overwrite=True),
    Spec("tracepoint:sched:sched_switch", kind=Kind.TRACEPOINT, condition="args->prev_pid > 1"),
)
SETTINGS = Settings(
    optimization=False,
    boost=False,
    emulation=False,
    trap=False,
    arena=ArenaRanges((STARTS, STARTS + 4096), (STARTS + 8192, STARTS + 12288)),
    on_exit="keep",
    exit_on_error=True,
    max_probes=7,
    guardian=False,
    table_keys=1024,
    ring_records=64,
    string_length=16,
    stack_size=1024,
)


class Guest:
    """Where some names lead, and what addresses are called."""

    def symbol(self, address: int) -> str:
        return next((name for name, at in SYMBOLS.items() if at == address), "")

    def event_at(self, event: EventName, address: int) -> EventName:
        return event

    def resolve(self, location: str, glob: bool) -> tuple[int, ...]:
        if glob:
            return SYMBOLS["vfs_read"], SYMBOLS["vfs_write"]
        found = 0x40_1000 if location.startswith("/") else SYMBOLS.get(location)
        return () if found is None else (found,)


def probes() -> list[Probe]:
    made = [Probe(number, spec, _address(spec)) for number, spec in enumerate(SPECS, 1)]
    made.insert(1, Probe(99, SPECS[0], SYMBOLS["vfs_write"], enabled=False))
    pending = next(probe for probe in made if probe.spec.pending)
    pending.presence = Presence.PENDING
    pending.absence = Refusal.PENDING.because(location="dummy:dummy_xmit", why="")
    both = next(probe for probe in made if probe.spec.glob)
    made.insert(made.index(both) + 1, Probe(98, both.spec, SYMBOLS["vfs_write"]))
    return made


def _address(spec: Spec) -> int:
    return AT + 0x24 if spec.location.startswith("*") else SYMBOLS.get(spec.location, AT)


def test_the_file() -> None:
    target = cast(Target, SimpleNamespace(guest=Guest(), debugger=Guest()))
    found = commands(probes(), SETTINGS, target, lambda spec, address: True, lambda probe: True)
    lines = with_variables(found.lines, {"limit": 4096}.get)
    assert "".join(f"{line}\n" for line in lines) == golden("saved.gdb")
    assert (found.count, found.left_out) == (len(probes()) - 1, (9,))


def test_what_was_saved_is_typed_in_today_s_words() -> None:
    lines = golden("saved.gdb").splitlines()
    specs = [parse_add(line.removeprefix("optprobe add ")).specs()[0] for line in lines if line[:12] == "optprobe add"]
    kinds = [replace(spec, condition_at=None, actions_at=()).kind for spec in specs]
    assert len(kinds) == 11 and set(kinds) == set(Kind)
    assert [spec.overwrite for spec in specs] == [False] * 9 + [True, False]
