"""Code of an x86-64 kernel that cannot be probed where its symbol is: it is copied, or runs on other page tables.

    head_64.S, wakeup_64.S, efi_thunk_64.S    other page tables or another mode of the CPU      EARLY
    ftrace_64.S, relocate_kernel_64.S, …      copied elsewhere, where a branch leads nowhere    COPIED
    __cfi_name, __pfx_name                    bytes before a function that callers compare      NOT_TEXT
"""

from __future__ import annotations

from gdb_optprobe.guest.text import Area

# From arch/x86/kernel/ftrace.c create_trampoline(), kprobes/opt.c, mm/mem_encrypt_boot.S.
_COPIED = ("ftrace_call", "ftrace_regs_call", "ftrace_graph_c", "ftrace_epilogue", "ftrace_stub", "optprobe_template_")
# machine_kexec_64.c and power/hibernate_64.c copy a page each.
_COPIED_WHOLE = frozenset(
    ("relocate_kernel", "identity_mapped", "virtual_mapped", "swap_pages", "core_restore_code", "__enc_copy")
)
_EARLY = ("startup_64", "secondary_startup_64", "common_startup_64", "start_cpu0", "wakeup_long64", "pvh_start_xen")
_EARLY_WHOLE = frozenset(
    (
        # head_64.S and head64.c: called while the page tables are the firmware's or the trampoline's.
        *("verify_cpu", "sev_verify_cbit", "vc_boot_ghcb", "__startup_64", "__startup_secondary_64"),
        # efi_thunk_64.S leaves 64-bit mode, hibernate_asm_64.S runs on page tables of its own.
        *("__efi64_thunk", "efi_enter32", "restore_image", "restore_registers"),
    )
)
# Hashes that an indirect call compares, and the room before a function (CONFIG_CFI_CLANG, CONFIG_CALL_PADDING).
_PREFIXES = ("__cfi_", "__pfx_")
_SPECIAL, _SPECIAL_WHOLE = _COPIED + _EARLY + _PREFIXES, _COPIED_WHOLE | _EARLY_WHOLE
_DISPATCHER = ("bpf_dispatcher_", "_func")
DISPATCH = 9
"""Bytes at a dispatcher's start that are rewritten: a landing pad and a nop, jump or call."""


def of(name: str) -> Area:
    """Return the kind of code that the function `name` of the kernel's text is."""
    if not name.startswith(_SPECIAL) and name not in _SPECIAL_WHOLE:  # asked of every function
        return Area.TEXT
    if name.startswith(_COPIED) or name in _COPIED_WHOLE:
        return Area.COPIED
    if name.startswith(_EARLY) or name in _EARLY_WHOLE:
        return Area.EARLY
    return Area.NOT_TEXT


def is_dispatcher(name: str) -> bool:
    """Return whether BPF rewrites the function's first instruction and compares it before
    (bpf_dispatcher_change_prog()).
    """
    return name.startswith(_DISPATCHER[0]) and name.endswith(_DISPATCHER[1])
