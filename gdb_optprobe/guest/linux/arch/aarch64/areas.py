"""Code of an aarch64 kernel that cannot be probed where its symbol is, by its address and by its symbols.

    __entry_text_start … end      vectors and what they lead to: interrupted registers are still in the CPU's own
    __idmap_text_start … end      runs without address translation, or at its physical address         EARLY
    __hyp_text_start … end, nVHE  runs at EL2, by other page tables                                    EARLY
    swsusp_*, *relocate*          copied before they run                                               COPIED
    ftrace_caller, its calls      rewritten as tracers come and go                                     COPIED
    behind the last section       the linker's tables, and nothing                                     NOT_TEXT
"""

from __future__ import annotations

import re

from gdb_optprobe.guest.linux.core_text import is_boundary
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.text import Area

ELSEWHERE = (
    ("__idmap_text_start", "__idmap_text_end"),
    ("__hyp_idmap_text_start", "__hyp_text_end"),
    ("__hyp_text_start", "__hyp_text_end"),
)
_EARLY = re.compile(r"__kvm_nvhe_|__kvm_hyp_|__hyp_|cpu_resume$|_cpu_resume$|secondary_(holding|entry)|__enable_mmu$")
_COPIED = re.compile(
    r"(swsusp_arch_suspend_exit|.*relocate_(new_)?kernel.*|ftrace_(regs_)?caller|ftrace_common(_return)?|ftrace_call"
    r"|ftrace_graph_call(er)?|ftrace_stub.*|return_to_handler|__mitigate_spectre_.*|__smccc_workaround_.*)$"
)
TRACERS = ("ftrace_call", "ftrace_graph_call")
"""Where the callers of tracers call one."""
_ENTRY = re.compile(r"ret_from_fork$|ret_to_(user|kernel)$|cpu_switch_to$|call_on_irq_stack$|__bad_stack$|__sdei_")


def entry_text(kernel: Kernel) -> tuple[int, int]:
    """Return [start, end) of vectors and the code that they lead to."""
    return kernel.range("__entry_text_start", "__entry_text_end")


def elsewhere(kernel: Kernel) -> list[tuple[int, int]]:
    """Return ranges of code that does not run where its symbols say."""
    return [(start, end) for start, end in (kernel.range(*names) for names in ELSEWHERE) if start < end]


def of(name: str) -> Area:
    """Return the kind of code that the function `name` of the kernel's text is."""
    if is_boundary(name):
        return Area.NOT_TEXT
    for pattern, area in ((_EARLY, Area.EARLY), (_COPIED, Area.COPIED), (_ENTRY, Area.ENTRY)):
        if pattern.match(name):
            return area
    return Area.TEXT
