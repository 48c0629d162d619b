"""Code of a ppc64le kernel that cannot be probed where its symbol is, by its address and by its symbols.

    _stext … __end_soft_masked   vectors and what they lead to: interrupted registers are still in the CPU's own, and an
                                 interrupt there is recognised by its address (exceptions-64s.S, interrupt_64.S)
    head_64.S, rtas_entry.S, *_realmode …      without address translation                        EARLY
    optprobe_template_, kvm_emulate_, …        templates that the kernel copies                   COPIED
    optinsn_slot, kvm_tmp                      room for what the kernel writes: a branch that
                                               leads there is a patch of its own                  NOT_TEXT
"""

from __future__ import annotations

import re

from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.text import Area

ENTRY_ENDS = ("__end_soft_masked", "start_text", "__end_interrupts")
_EARLY = re.compile(
    r".*(realmode|real_mode|_rm_|rmhandler)|(__)?enter_rtas$|rtas_(return_loc|restore_regs)|kvmppc_.*_rm$|icp_rm_|xics_rm_"
    r"|hcall_|kvmppc_(hv_entry|interrupt_hv)|idle_return_gpr_loss|isa\d+_idle|power\d+_idle|pnv_powersave|system_reset_"
    r"|generic_secondary_|__mmu_off|__start_initialization|__after_prom_start|copy_and_flush|__secondary_start|"
    r"start_secondary_(prolog|resume)|enable_64b_mode|relative_toc|__boot_from_prom|start_here_|p_(end|toc)$"
    r"|relocate_new_kernel|kexec_(wait|smp_wait|sequence)|swsusp_arch_"
)
_COPIED = re.compile(r"optprobe_template_|kvm_emulate_|ftrace_(regs_)?call(er)?$|ftrace_tramp_|ftrace_ool_stub_")
NO_CODE = frozenset(("optinsn_slot", "kvm_tmp", "kvm_template_end"))
TRACERS = ("ftrace_call", "ftrace_regs_call", "ftrace_graph_call")
"""Where the kernel's callers of a tracer call it (arch/powerpc/kernel/trace): rewritten as tracers come and go."""
_ENTRY = re.compile(r"ret_from_|(fast_)?interrupt_return|system_call_|soft_nmi_common|replay_")


def entry_text(kernel: Kernel) -> tuple[int, int]:
    """Return [start, end) from the first vector to the end of the code that vectors lead to."""
    start = kernel.address("_stext")
    ends = [kernel.symbols.address(name) for name in ENTRY_ENDS]
    return start, max((end for end in ends if end is not None), default=start)


def of(name: str) -> Area:
    """Return the kind of code that the function `name` of the kernel's text is."""
    if name in NO_CODE:
        return Area.NOT_TEXT
    for pattern, area in ((_EARLY, Area.EARLY), (_COPIED, Area.COPIED), (_ENTRY, Area.ENTRY)):
        if pattern.match(name):
            return area
    return Area.TEXT
