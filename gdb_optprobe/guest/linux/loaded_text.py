"""The text of the kernel and of all loaded modules, as one.

The list of modules is read at most once per stop of the guest, when it is first needed. The facts of a module are kept
for as long as it stays loaded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol

from gdb_optprobe.budget import Budget
from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.ftrace_sites import NO_SITE, FtraceSites
from gdb_optprobe.guest.linux.handler_text import HandlerText
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.module_symbols import ModuleSymbols
from gdb_optprobe.guest.linux.modules import Module, Modules, State
from gdb_optprobe.guest.text import Area, FtraceSite, Function, IdleSites, Mark, Text

Identity = tuple[object, ...]
# A limit (budget.py) on symbols of all modules: a desktop's 200 have 60,000. The rest is ignored.
MOST_SYMBOLS = 1 << 20


class ModuleCode(Text, Protocol):
    """The text of one module."""

    module: Module
    symbols: ModuleSymbols
    ftrace: FtraceSites

    def renew(self, module: Module) -> None:
        """Take the module as it is after the guest has run: its state may have changed."""

    def symbol(self, address: int) -> str: ...


class KernelCode(Text, Protocol):
    @property
    def ftrace(self) -> FtraceSites: ...

    def forget(self) -> None: ...

    def idle_sites(self, addresses: Sequence[int], kept_off: Collection[int] = ()) -> IdleSites:
        """See guest.Guest."""


class LoadedText:
    """Fills guest.text.Text."""

    def __init__(
        self,
        core: KernelCode,
        kernel: Kernel,
        area: tuple[int, int],
        text_of: Callable[[Module], ModuleCode],
        handlers: HandlerText | None = None,
    ) -> None:
        """Join texts. area: of modules. text_of: raises OptprobeError for a module with unreadable symbols.
        handlers: functions of the arena. own: the kernel's own text; (0, 0) where it is unknown.
        """
        self.core = core
        self.handlers = handlers
        self._kernel = kernel
        self._area, self.own = area, kernel.range("_stext", "_etext")
        self._text_of = text_of
        self._reader: Modules | None = None
        self._texts: dict[Identity, ModuleCode] = {}
        self._starts: list[int] = []
        self._ends: list[tuple[int, ModuleCode]] = []
        self._current = False
        self._ready: set[Identity] = set()
        self.strange: dict[str, str] = {}

    # --- modules ---------------------------------------------------------------------------------------------------

    def modules(self) -> Sequence[ModuleCode]:
        """Return the modules that are loaded now, those that are about to be unloaded among them."""
        if not self._current:
            self._look()
            self._current = True
        return tuple(self._texts.values())

    def _look(self) -> None:
        known, self._texts, self.strange = self._texts, {}, {}
        self._starts, self._ends = [], []
        try:
            if self._reader is None:
                self._reader = Modules(self._kernel, self._area)
            loaded = list(self._reader.loaded())
        except OptprobeError as error:
            self.strange = {"": error.message}
            return
        self.strange |= self._reader.strange
        self._ready &= {module.identity for module in loaded}
        budget = Budget(MOST_SYMBOLS, "what is loaded", "symbols")
        for module in loaded:
            if module.state is State.COMING and module.identity not in self._ready:
                continue
            try:
                budget.spend(module.symbols.count)
                text = known.get(module.identity) or self._text_of(module)
            except OptprobeError as error:
                self.strange[module.name] = error.message
                continue
            text.renew(module)
            self._texts[module.identity] = text
        ranges = ((*of, text) for text in self._texts.values() for of in (text.module.text, text.module.init))
        ordered = sorted(ranges, key=lambda each: each[:2])
        self._starts, self._ends = [start for start, _, _ in ordered], [(end, text) for _, end, text in ordered]

    def check(self) -> None:
        """Read the list of modules. Raises OptprobeError where it cannot be read."""
        self.modules()
        if "" in self.strange:
            raise NoSuchKernel(self.strange[""])

    def arriving(self, address: int) -> ModuleCode:
        """Return the module at `address`, a struct module that was passed to do_init_module().
        Its tables are complete and none of its code has run. Raises OptprobeError where the state is another.
        """
        self._current = False
        self.modules()
        assert self._reader is not None or self.strange
        loaded = self._reader.loaded() if self._reader is not None else ()
        found = next((module for module in loaded if module.address == address), None)
        if found is None:
            raise NoSuchKernel(next(iter(self.strange.values()), f"no module is at {address:#x}"))
        self._ready.add(found.identity)
        self._current = False
        self.modules()
        text = self._texts.get(found.identity)
        if text is None:
            raise NoSuchKernel(self.strange.get(found.name, f"the module {found.name} is not being loaded"))
        return text

    def at(self, address: int) -> ModuleCode | None:
        """Return the module with `address` in its text or init text."""
        if not self._may_be(address):
            return None
        self.modules()
        return self.known(address)

    def known(self, address: int) -> ModuleCode | None:
        """Return what `at` returns, from what was read last: nothing is read now."""
        place = bisect_right(self._starts, address) - 1
        if place < 0 or not self._may_be(address):
            return None
        end, text = self._ends[place]
        return text if address < end else None

    def identity(self, address: int) -> Identity | None:
        """Return the code of the module around `address`. Raises OptprobeError where the modules are unknown."""
        found = self.at(address)
        if found is None and self._may_be(address):
            self.check()
        return found.module.identity if found is not None else None

    def called(self, name: str) -> ModuleCode | None:
        """Return the module of that name that can be probed; hyphens in its name are accepted."""
        wanted = name.replace("-", "_")
        return next((text for text in self._staying() if text.module.name.replace("-", "_") == wanted), None)

    def _staying(self) -> Iterator[ModuleCode]:
        return (text for text in self.modules() if text.module.state is not State.GOING)

    def _may_be(self, address: int) -> bool:
        """Return whether a module may have text there: the kernel's own may be in the middle of their area."""
        own = self.own[0] <= address < self.own[1]
        return self._area[0] <= address < self._area[1] and not own

    # --- names -----------------------------------------------------------------------------------------------------

    def staying(self) -> frozenset[Identity]:
        """Return the identities of modules that can be probed."""
        return frozenset(text.module.identity for text in self._staying())

    def symbol(self, address: int) -> str:
        """Return MODULE:NAME+OFFSET; "" where no module has a symbol."""
        found = self.at(address)
        return found.symbol(address) if found is not None else ""

    def has(self, module: str) -> bool:
        return self.called(module) is not None

    def bounds(self, address: int) -> tuple[int, int] | None:
        """Return start and end of the module's function that covers `address`."""
        found = self.at(address)
        return found.symbols.function_bounds(address) if found is not None else None

    def names(self, module: str = "") -> Iterator[tuple[str, int]]:
        """Yield functions of one module, or of all, with aliases; none of a module that is about to be unloaded."""
        one = self.called(module) if module else None
        texts: Iterable[ModuleCode] = self._staying() if not module else () if one is None else (one,)
        return (pair for text in texts for pair in text.symbols.functions())

    # --- Text ------------------------------------------------------------------------------------------------------

    @property
    def ftrace(self) -> FtraceSites:
        return self.core.ftrace

    def ftrace_of(self, address: int) -> FtraceSites:
        """Return the ftrace sites of the text around `address`."""
        found = self.at(address)
        if found is None and self._may_be(address):
            return FtraceSites(self._kernel, NO_SITE, of=(0, 0))
        return found.ftrace if found is not None else self.core.ftrace

    def forget(self) -> None:
        self.core.forget()
        self._current = False

    def area(self, address: int) -> Area:
        return self._of(address).area(address)

    def function(self, address: int) -> Function | None:
        return self._of(address).function(address)

    def marks(self, start: int, end: int) -> Sequence[Mark]:
        return self._of(start).marks(start, end)

    def ftrace_sites(self, start: int, end: int) -> Sequence[FtraceSite]:
        if self._is_own(start):
            return ()
        return self.ftrace_of(start).sites(start, end)

    def spell(self, address: int) -> str:
        return self._of(address).spell(address)

    def _is_own(self, address: int) -> bool:
        return self.handlers is not None and self.handlers.function(address) is not None

    def _of(self, address: int) -> Text:
        if self.handlers is not None and self._is_own(address):
            return self.handlers
        found = self.at(address)
        return found if found is not None else self.core
