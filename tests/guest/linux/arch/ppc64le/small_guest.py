"""A ppc64le kernel of a few pages: two CPUs, a few threads, and the code that tells where it keeps them.

Each stack has a word of its own at the saved SP, one below it, and one in the bytes below a leaf function's SP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gdb_optprobe.guest.linux.arch.ppc64le.derive import derive
from gdb_optprobe.guest.linux.arch.ppc64le.stacks import Stacks
from gdb_optprobe.guest.linux.arch.ppc64le.threads import Layout
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.saved_pcs import SavedWords
from tests.guest.linux.arch.ppc64le.test_arch import BASE, TEXT, TOC, made_of_toc, power_kernel, toc_setup, words
from tests.guest.linux.arch.x86_64.small_guest import circle
from tests.guest.linux.fake_kernel import PAGE, Machine, Structures

SIZE = 0x4000
PC, SRR0 = TEXT + 0xAB0, TEXT + 0xAC0
USER, TRANSLATED = 1 << 14, 1 << 5
ON_STACK, BELOW, RED, ON_INTERRUPT, ON_EMERGENCY, IN_PACA = (0x1000 * n for n in range(1, 7))

THREADS = ("init", "leader", "thread", "ending", "idle1")
DATA = TOC + 0x100000
TASKS = {name: DATA + 0x1000 * (n + 1) for n, name in enumerate(THREADS)}
STACKS = {name: DATA + 0x200000 + SIZE * n for n, name in enumerate(THREADS)}
SIGNALS = {"init": DATA + 0x8000, "leader": DATA + 0x8100}
LOCK, PACA_PTRS, HARD, SOFT, OFFSETS, QUEUES, ONLINE = (DATA + 0x9000 + 0x100 * n for n in range(7))
PACAS = (DATA + 0xB100, DATA + 0xD100)
POINTERS = DATA + 0xA000
PER_CPU = (0x400000, 0x500000)
INTERRUPT_STACKS = tuple(tuple(DATA + 0x240000 + SIZE * (2 * kind + cpu) for cpu in (0, 1)) for kind in (0, 1))
EMERGENCY_STACKS = tuple(tuple(DATA + 0x260000 + SIZE * (2 * kind + cpu) for cpu in (0, 1)) for kind in (0, 1, 2))
SP = {name: stack + 0x3E00 for name, stack in STACKS.items()}
SAVED_SP = {name: stack + 0x3F00 for name, stack in STACKS.items()}

LAYOUT = Layout(
    init_task=TASKS["init"],
    tasks=0x110,
    thread_node=0x130,
    signal=0x150,
    thread_head=0x10,
    stack=0x18,
    sp=0xE00,
    pid=0x124,
    comm=0x140,
    thread_size=SIZE,
    pacas=PACA_PTRS,
    number=8,
    current=0x908,
    emergency=(0x28, 0x9F8, 0xA00),
    interrupt_stacks=(HARD, SOFT),
    per_cpu_offset=OFFSETS,
    runqueues=QUEUES,
    idle=0x10,
    online=ONLINE,
    online_count=ONLINE + 0x80,
)


def d(op: int, target: int, base: int, offset: int) -> bytes:
    return words(op << 26 | target << 21 | base << 16 | offset & 0xFFFF)


def ld(target: int, base: int, offset: int) -> bytes:
    return d(58, target, base, offset)


def std(source: int, base: int, offset: int) -> bytes:
    return d(62, source, base, offset)


def addi(target: int, base: int, offset: int) -> bytes:
    return d(14, target, base, offset)


def clrrdi(target: int, source: int, bits: int) -> bytes:
    last = 63 - bits
    return words(30 << 26 | source << 21 | target << 16 | (last & 31) << 6 | last & 32 | 4)


THREAD = 0xDF0
MFLR_R9, MTLR_R9, MTCTR_R9, BLR, BCCTR_FLUSH = 0x7D2802A6, 0x7D2803A6, 0x7D2903A6, 0x4E800020, 0x4C400420
CALL_NEXT, JUMP_NEXT, JUMP_AWAY = 0x48000005, 0x48000004, 0x48001000
FLUSH = words(MFLR_R9, CALL_NEXT, CALL_NEXT, JUMP_NEXT, MTLR_R9, 0x39207FFF, MTCTR_R9, BCCTR_FLUSH, BLR, JUMP_AWAY)
"""What the kernel patches calls of into _switch (entry_64.S, flush_branch_caches); the padding behind it leads away."""
SWITCH, FLUSH_AT = TEXT + 0x1000, TEXT + 0x1F00
CALL_FLUSH = words(0x48000001 | FLUSH_AT - (SWITCH + 0x10))
CODE = {
    "_switch": std(14, 1, 0xE0) + std(1, 3, LAYOUT.sp - THREAD) + CALL_FLUSH + addi(6, 4, -THREAD)
    + std(6, 13, LAYOUT.current) + ld(6, 6, 0x7F0)
    + std(6, 13, 0xC78) + ld(8, 4, LAYOUT.sp - THREAD) + clrrdi(6, 8, 28) + clrrdi(7, 8, 14),
    "validate_sp": ld(8, 4, LAYOUT.stack) + d(32, 10, 4, 4) + made_of_toc(9, HARD) + made_of_toc(9, SOFT)
    + made_of_toc(10, PACA_PTRS) + ld(10, 10, 0) + ld(10, 8, 0x28) + addi(10, 10, -SIZE)
    + ld(10, 8, 0x9F8) + addi(10, 10, -SIZE) + ld(10, 8, 0xA00) + addi(9, 0, 0) + addi(10, 10, -SIZE),
    "normalize_rt_tasks": made_of_toc(27, LOCK) + ld(10, 13, 0xC78) + made_of_toc(28, TASKS["init"])
    + ld(26, 28, LAYOUT.tasks) + addi(29, 26, -LAYOUT.tasks) + ld(10, 26, LAYOUT.signal - LAYOUT.tasks)
    + ld(31, 10, LAYOUT.thread_head) + addi(9, 10, LAYOUT.thread_head) + addi(31, 31, -LAYOUT.thread_node)
    + ld(31, 31, LAYOUT.thread_node),
    "dump_stack_print_info": ld(30, 13, LAYOUT.current) + d(40, 26, 13, LAYOUT.number) + d(32, 25, 30, LAYOUT.pid)
    + addi(30, 30, LAYOUT.comm) + addi(30, 30, -28648),
    "idle_task": made_of_toc(10, OFFSETS) + made_of_toc(9, QUEUES) + ld(3, 9, LAYOUT.idle),
    "set_cpu_online": made_of_toc(10, ONLINE) + addi(10, 10, 0x80) + addi(10, 10, 0x80),
}  # fmt: skip
PLACES = {name: SWITCH + 0x100 * n for n, name in enumerate(CODE)}
NAMES = {
    "_stext": BASE,
    "start_text": TEXT,
    **PLACES,
    "flush_branch_caches": FLUSH_AT,
    "tail": TEXT + 0x2000,
    "d__etext": TEXT + 0x10000,
}


OFFSETS_BY_TYPES = {
    "task_struct.tasks": LAYOUT.tasks,
    "task_struct.thread_node": LAYOUT.thread_node,
    "task_struct.signal": LAYOUT.signal,
    "task_struct.stack": LAYOUT.stack,
    "task_struct.thread.ksp": LAYOUT.sp,
    "task_struct.pid": LAYOUT.pid,
    "task_struct.comm": LAYOUT.comm,
    "task_struct.rcu_tasks_exit_list": 0x170,
    "signal_struct.thread_head": LAYOUT.thread_head,
    "paca_struct.paca_index": LAYOUT.number,
    "paca_struct.__current": LAYOUT.current,
    "paca_struct.emergency_sp": LAYOUT.emergency[0],
    "paca_struct.nmi_emergency_sp": LAYOUT.emergency[1],
    "paca_struct.mc_emergency_sp": LAYOUT.emergency[2],
    "rq.idle": LAYOUT.idle,
    "rcu_tasks.rtpcpu": 8,
    "rcu_tasks_percpu.rtp_exit_list": 0x30,
}
NR_CPUS, RCU_TASKS, RCU_TASKS_PERCPU = DATA + 0x9700, DATA + 0x9780, DATA + 0x9E00
DATA_NAMES = {
    "d_init_task": TASKS["init"],
    "d_paca_ptrs": PACA_PTRS,
    "d_hardirq_ctx": HARD,
    "d_softirq_ctx": SOFT,
    "d___per_cpu_offset": OFFSETS,
    "d_runqueues": QUEUES,
    "d___cpu_online_mask": ONLINE,
    "d___num_online_cpus": LAYOUT.online_count,
    "d_nr_cpu_ids": NR_CPUS,
    "d___end_init_stack": STACKS["init"] + SIZE,
}
"""Of a kernel with types: it names its data."""
PREEMPTS = {"preempt_schedule": TEXT + 0x2100, "d_rcu_tasks": RCU_TASKS}


def typed_kernel(there: Machine, more: Mapping[str, int] | None = None) -> Kernel:
    """No function of it tells anything."""
    names = {name: at for name, at in NAMES.items() if name not in CODE}
    found = power_kernel(there, {**names, **DATA_NAMES, **(more or {})})
    return replace(found, structures=Structures(OFFSETS_BY_TYPES))


def accounted(there: Machine, *ending: str) -> None:
    """Those that end, on the list of CPU 1."""
    there.put_words(RCU_TASKS + 8, RCU_TASKS_PERCPU)
    for cpu, base in enumerate(PER_CPU):
        at = RCU_TASKS_PERCPU + base
        _blank(there, at, 0x100)
        circle(there, at + 0x30, *(TASKS[name] + 0x170 for name in ending if cpu))


def number(name: str) -> int:
    return THREADS.index(name)


def guest(first: Mapping[str, int] | None = None, second: Mapping[str, int] | None = None) -> Machine:
    """CPU 0 runs `leader`, CPU 1 is idle; `first` and `second` change their registers. `ending` is in no list."""
    usual = {"pc": PC, "msr": TRANSLATED, "srr0": SRR0}
    there = Machine(
        {**usual, "r1": SP["leader"], "r13": PACAS[0], **(first or {})},
        {**usual, "r1": SP["idle1"], "r13": PACAS[1], **(second or {})},
    )
    for name, code in CODE.items():
        there.put(PLACES[name], toc_setup(PLACES[name]) + code)
    there.put(FLUSH_AT, FLUSH)
    _blank(there, DATA + 0x8000, 0x3000)
    for name in THREADS:
        _thread(there, name)
    circle(there, TASKS["init"] + LAYOUT.tasks, TASKS["leader"] + LAYOUT.tasks)
    for name, members in (("init", ["init"]), ("leader", ["leader", "thread"])):
        for member in members:
            there.put_words(TASKS[member] + LAYOUT.signal, SIGNALS[name])
        nodes = (TASKS[member] + LAYOUT.thread_node for member in members)
        circle(there, SIGNALS[name] + LAYOUT.thread_head, *nodes)
    there.put_words(PACA_PTRS, POINTERS)
    there.put_words(POINTERS, *PACAS)
    for cpu, (current, idle) in enumerate((("leader", "init"), ("idle1", "idle1"))):
        _cpu(there, cpu, current, idle)
    there.put_words(ONLINE, 0b11)
    there.put_words(LAYOUT.online_count, 2)
    there.put_words(NR_CPUS, 2)
    return there


def _blank(there: Machine, start: int, size: int) -> None:
    for page in range(start // PAGE, -(-(start + size) // PAGE)):
        there.pages.setdefault(page, bytearray(PAGE))


def _thread(there: Machine, name: str) -> None:
    task, stack = TASKS[name], STACKS[name]
    idle = {"init": 0, "idle1": 1}
    _blank(there, task, 0x1000)
    _blank(there, stack, SIZE)
    there.put_words(task + LAYOUT.stack, stack)
    there.put_words(task + LAYOUT.sp, SAVED_SP[name])
    there.put(task + LAYOUT.pid, (0 if name in idle else number(name)).to_bytes(4, "little"))
    there.put(task + LAYOUT.comm, f"swapper/{idle[name]}".encode() if name in idle else name.encode())
    there.put_words(SAVED_SP[name], SAVED_SP[name] + 0x70, ON_STACK + number(name))
    there.put_words(SP[name], SAVED_SP[name], BELOW + number(name))
    there.put_words(SP[name] - 0x100, RED + number(name))


def _cpu(there: Machine, cpu: int, current: str, idle: str) -> None:
    paca, queue = PACAS[cpu], QUEUES + PER_CPU[cpu]
    _blank(there, paca, 0x2000)
    there.put_words(paca + LAYOUT.number, cpu)
    there.put_words(paca + LAYOUT.current, TASKS[current])
    there.put_words(paca + 0x800, IN_PACA + cpu)
    there.put_words(OFFSETS + 8 * cpu, PER_CPU[cpu])
    _blank(there, queue, 0x100)
    there.put_words(queue + LAYOUT.idle, TASKS[idle])
    for kind, array in enumerate((HARD, SOFT)):
        stack = INTERRUPT_STACKS[kind][cpu]
        _blank(there, stack, SIZE)
        there.put_words(array + 8 * cpu, stack)
        there.put_words(stack + SIZE - 0x20, ON_INTERRUPT + 0x10 * kind + cpu)
    for kind, offset in enumerate(LAYOUT.emergency):
        stack = EMERGENCY_STACKS[kind][cpu]
        _blank(there, stack, SIZE)
        there.put_words(stack + 0x80, ON_EMERGENCY + 0x10 * kind + cpu)
        there.put_words(paca + offset, stack + SIZE)


def on_interrupt_stack(there: Machine, kind: int, cpu: int, leads_to: int) -> int:
    """Two frames there, and the SP of the inner one."""
    end = INTERRUPT_STACKS[kind][cpu] + SIZE
    there.put_words(end - 0x70, leads_to)
    there.put_words(end - 0x100, end - 0x70)
    return end - 0x100


def kernel(there: Machine, names: Mapping[str, int] = NAMES) -> Kernel:
    return power_kernel(there, names)


def saved(there: Machine) -> list[SavedWords]:
    known = kernel(there)
    return list(Stacks(known, there, ("pc", "lr"), derive(known)).saved())


def seen(there: Machine) -> set[int]:
    return {word for each in saved(there) for word in each.words} - {0}
