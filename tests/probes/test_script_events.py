"""Which function of the kernel serves an event of a script: page faults by the guest's own word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64.arch import LINUX_AARCH64
from gdb_optprobe.guest.linux.arch.base import Interrupted, LinuxArch
from gdb_optprobe.guest.linux.arch.ppc64le.arch import LINUX_PPC64LE
from gdb_optprobe.guest.linux.arch.x86_64.arch import LINUX_X86_64
from gdb_optprobe.guest.names import NamesAt
from gdb_optprobe.guest.script_scope import KernelHit
from gdb_optprobe.handlers.ctype import UNSIGNED_LONG
from gdb_optprobe.handlers.ir import Constant, Register
from gdb_optprobe.handlers.scope import Missing, Rvalue
from gdb_optprobe.handlers.script.scope import Matched
from gdb_optprobe.probes.script_events import ScriptEvents


def faults(handlers: Sequence[tuple[str, str]], functions: Mapping[str, int]) -> Sequence[Matched] | Missing:
    """Match every tenth page fault of a guest that has `functions`."""

    def resolve(name: str, glob: bool) -> Sequence[int]:
        if name not in functions:
            raise OptprobeError(f"no function {name}")
        return [functions[name]]

    scope = SimpleNamespace(dollar=lambda name: Rvalue(Register(name), UNSIGNED_LONG))
    names = NamesAt(cast(Any, scope), cpu=Constant(0))
    guest = SimpleNamespace(page_faults=handlers, names_at=lambda address: names)
    target = SimpleNamespace(guest=guest, debugger=SimpleNamespace(resolve=resolve))
    events = ScriptEvents(cast(Any, target), lambda *_: (), KernelHit)
    return events.matches("software", "page-faults", "10")


@pytest.mark.parametrize(
    ("arch", "there", "taken", "registers"),
    [
        (LINUX_X86_64, {"do_user_addr_fault": 0x10}, 0x10, "arg1"),
        (LINUX_PPC64LE, {"___do_page_fault": 0x10, "__do_page_fault": 0x20, "do_page_fault": 0x30}, 0x10, "arg1"),
        (LINUX_PPC64LE, {"__do_page_fault": 0x20, "do_page_fault": 0x30}, 0x20, "arg1"),
        (LINUX_AARCH64, {"__do_page_fault": 0x20, "do_page_fault": 0x30}, 0x30, "arg3"),
    ],
)
def test_page_faults(arch: LinuxArch, there: Mapping[str, int], taken: int, registers: str) -> None:
    found = faults(arch.page_faults, there)
    assert not isinstance(found, Missing)
    (match,) = found
    assert match.address == taken and match.name == "software:page-faults:10"
    assert isinstance(match.hit, KernelHit) and match.hit.interrupted == Interrupted(Register(registers))


def test_no_handler_of_page_faults() -> None:
    found = faults(LINUX_PPC64LE.page_faults, {"do_page_fault": 0x30})
    assert isinstance(found, Missing)
    assert found.message == "no function is known that serves software:page-faults"
    assert found.hint == "there would be ___do_page_fault, __do_page_fault"
    found = faults((), {})
    assert isinstance(found, Missing) and not found.hint
