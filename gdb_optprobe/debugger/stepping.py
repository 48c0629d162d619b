"""Stepping through probed code shows the guest's own instructions, each once.

A step would enter a detour. So before a command that steps, the optimized sites that it may reach move down to a stop
point: the text has the original instructions again and GDB steps over them. Afterwards the sites move up again.

    hook-stepi ──► lower ──► stepi, in the original code ──► hookpost-stepi ──► raise

"""

from __future__ import annotations

from collections.abc import Callable

import gdb

from gdb_optprobe.debugger.machine import read_register
from gdb_optprobe.debugger.messages import warn
from gdb_optprobe.debugger.running import is_stopped
from gdb_optprobe.debugger.stops import Hidden, define_hook
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.interrupts import held, unbroken
from gdb_optprobe.probes.session import Session
from gdb_optprobe.probes.site import Site

WITHIN_FUNCTION = ("stepi", "nexti", "step", "next", "until")
TO_ADDRESS = ("until", "advance")
MOST_STEPS = 1024


class Stepping:
    """The sites that are lowered now, and the hooks that lower and raise them."""

    def __init__(self, session: Callable[[], Session | None]) -> None:
        self._session = session
        self._lowered: list[Site] = []
        self._busy = False
        for command in sorted({*WITHIN_FUNCTION, *TO_ADDRESS}):
            Hidden(f"optprobe-before-{command}", self._before(command))
            Hidden(f"optprobe-after-{command}", self.raise_again)
            define_hook(command, f"optprobe-before-{command}")
            define_hook(command, f"optprobe-after-{command}", post=True)
        gdb.events.before_prompt.connect(unbroken(lambda *_: self.raise_again()))

    @held()
    def raise_again(self) -> None:
        """Optimize the lowered sites again: the step is over."""
        session = self._session()
        if self._busy or not self._lowered or session is None or not is_stopped():
            return
        sites, self._lowered = self._lowered, []
        session.optimizer.unpin(sites)
        try:
            session.optimizer.settle([site for site in sites if session.registry.site(site.address) is site])
        except OptprobeError as error:
            warn(error)

    def _before(self, command: str) -> Callable[[], None]:
        @held()
        def before() -> None:
            session = self._session()
            if self._busy or session is None or not is_stopped() or not len(session.registry):
                return
            if not session.is_same_guest():
                return
            self._busy = True
            try:
                self._leave_detour(session)
                sites = self._in_the_way(session, command)
                self._lowered += sites
                session.optimizer.pin(sites)
            finally:
                self._busy = False

        return before

    def _in_the_way(self, session: Session, command: str) -> list[Site]:
        """Return the optimized sites that a step may reach: at the PC, in its function, or that cover its target."""
        pc = read_register(session.target.guest.isa.pc)
        function = session.target.guest.text.function(pc)
        start, end = (function.start, function.end) if function is not None else (pc, pc + 1)
        # A member of a block is one instruction at a function's entry: a step passes it where that is ahead, and one
        # that leaves its block for it needs memory of its own.
        ahead = session.registry.sites_within(pc, max(end, pc + 1))
        optimized = [site for site in (*ahead, *session.registry.sites()) if site.branch is not None]
        within = [site for site in optimized if command in WITHIN_FUNCTION and start <= site.address < end]
        wide = [site for site in optimized if command in TO_ADDRESS and self._is_passed(session, site)]
        here = [
            site
            for site in optimized
            if site.installed_plan and site.installed_plan.head <= pc < site.installed_plan.end
        ]
        return list({site.address: site for site in (*within, *wide, *here)}.values())

    def _is_passed(self, session: Session, site: Site) -> bool:
        """Return whether a thread may pass the site's address without reaching a breakpoint there."""
        assert site.branch is not None
        return site.branch.plan.needs_quiescence or session.optimizer.links.is_linked(site.branch)

    def _leave_detour(self, session: Session) -> None:
        """Finish a hit that a Ctrl-C has stopped inside a detour, silently."""
        for _ in range(MOST_STEPS):
            pc = read_register(session.target.guest.isa.pc)
            if not session.is_inside(pc):
                return
            gdb.execute("stepi", to_string=True)
