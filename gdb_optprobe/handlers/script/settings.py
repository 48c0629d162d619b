"""`config = { … }`: bpftrace's settings that mean something here, with its defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from gdb_optprobe.handlers.script import tree
from gdb_optprobe.handlers.script.place import wrong

STACK_MODES = ("bpftrace", "perf", "raw")
_OF_PEERS = (
    "cache_user_symbols", "cpp_demangle", "lazy_symbolication", "log_size", "max_bpf_progs", "max_type_res_iterations",
    "on_stack_limit", "perf_rb_pages", "probe_inline", "symbol_source", "use_blazesym", "unstable_import",
    "unstable_map_decl", "show_debug_info",
)  # fmt: skip
"""Settings of BPF's or of bpftrace's own ways, which are taken and do nothing."""
_OF_ENVIRONMENT = ("btf", "debug_output", "kernel_build", "kernel_source", "max_ast_nodes", "verify_llvm_ir", "vmlinux")
_PREFIX = "bpftrace_"


@dataclass(frozen=True, slots=True)
class Settings:
    """max_strlen: bytes of a text with its 0. print_maps_on_exit: 0 or 1. missing_probes: "warn", "ignore", "error"."""

    max_map_keys: int = 4096
    max_probes: int = 1024
    max_strlen: int = 1024
    max_cat_bytes: int = 10240
    print_maps_on_exit: int = 1
    missing_probes: str = "warn"
    stack_mode: str = "bpftrace"
    str_trunc_trailer: str = ".."


_WORDS = {"missing_probes": ("warn", "ignore", "error"), "stack_mode": STACK_MODES}


def configured(settings: Settings, given: tuple[tree.Setting, ...]) -> Settings:
    """Return the settings with those of a script. Raises OptprobeError, pointing."""
    known = {each.name for each in fields(Settings)}
    for each in given:
        name = each.name.lower().removeprefix(_PREFIX)
        if name in _OF_ENVIRONMENT:
            raise wrong(f"{each.name} can only be set as an environment variable", each.where)
        if name not in known and name not in _OF_PEERS:
            hint = f"there are: {', '.join(sorted(known))}"
            raise wrong(f"Unrecognized config variable: {each.name}", each.where, hint)
        if name in _OF_PEERS:
            continue
        value = each.value
        if name in _WORDS and value not in _WORDS[name]:
            raise wrong(f"Invalid value for {name}", each.where, f"one of {', '.join(_WORDS[name])}")
        if isinstance(getattr(settings, name), int):
            value = {"true": 1, "false": 0}.get(str(value), value)
            if not isinstance(value, int):
                raise wrong(f"{name} takes a number", each.where)
        changes: dict[str, Any] = {name: value if isinstance(value, int) else str(value)}
        settings = replace(settings, **changes)
    return settings
