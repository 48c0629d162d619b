"""Where a ppc64le kernel keeps its threads and stacks: by its types, or without them from the functions that use them.

    _switch                  std r1,KSP(r3)            a thread's saved SP, THREAD + KSP from its start
                             addi r6,r4,-THREAD
                             std r6,CURRENT(r13)       the paca's current thread
                             clrrdi r7,r8,14           THREAD_SIZE
    validate_sp              ld r8,STACK(r4)           a thread's stack
                             addis r9,r2,…; addi …     hardirq_ctx, softirq_ctx, paca_ptrs
                             ld r10,EMERGENCY(r8)      three stacks' ends in the paca
    normalize_rt_tasks       addi r28,…                init_task
                             ld r26,TASKS(r28)         and back, addi r29,r26,-TASKS; thread_node in the same way
                             ld r10,SIGNAL-TASKS(r26)
                             addi r9,r10,THREAD_HEAD
    dump_stack_print_info    lhz r26,NUMBER(r13)       ld r30,CURRENT(r13); lwz r25,PID(r30); addi r30,r30,COMM
    idle_task                addi …; ld r3,IDLE(r9)    __per_cpu_offset, runqueues
    set_cpu_online           addi r10,…                __cpu_online_mask, then __num_online_cpus

What a function does not decide (which constant is which, which load is of what) is tried in all combinations. One is
accepted if a walk over all threads and CPUs finds only threads, stacks and pacas, and if no other one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le.constants import DerivedSymbols
from gdb_optprobe.guest.linux.arch.ppc64le.stacks import exiting_of
from gdb_optprobe.guest.linux.arch.ppc64le.structures import has_types
from gdb_optprobe.guest.linux.arch.ppc64le.threads import Layout, Thread, Threads, cpus
from gdb_optprobe.guest.linux.kernel import Kernel, NoSuchKernel
from gdb_optprobe.guest.linux.tasks import thread_size
from gdb_optprobe.isa.ppc64le.fields import opcode, ra, rt, simm, word_of

SP, PREVIOUS, NEXT, PACA = 1, 3, 4, 13  # registers: of _switch's arguments, the second is validate_sp's thread as well
ADDI, ROTATE, LWZ, LHZ, LD, STD = 14, 30, 32, 40, 58, 62
PLAUSIBLE = (1 << 13, 1 << 14, 1 << 15, 1 << 16)
IDLE_NAME = "swapper"
HEADER_OF_FRAME = 32
EMERGENCY = ("emergency_sp", "nmi_emergency_sp", "mc_emergency_sp")
"""Ends of stacks, in a paca (asm/paca.h)."""


def derive(kernel: Kernel) -> Layout:
    """Return the layout, by the kernel's types or else by its code. Raises NoSuchKernel with what could not be found.

    It is the same for as long as the kernel runs, and is looked for until it is found.
    """
    symbols = kernel.symbols
    known = symbols.layout if isinstance(symbols, DerivedSymbols) else None
    if known is None:
        known = _derived(kernel)
        if isinstance(symbols, DerivedSymbols):
            symbols.layout = known
    return known


def _derived(kernel: Kernel) -> Layout:
    typed = has_types(kernel)
    if not typed and kernel.symbols.address("preempt_schedule") is not None:
        raise NoSuchKernel("this kernel preempts threads, and without types (BTF) one that ends could not be found")
    layouts = [by_types(kernel)] if typed else by_code(kernel)
    found = [layout for layout in layouts if _holds(kernel, layout)]
    if len(found) != 1:
        source = "types and symbols tell" if typed else "code uses"
        raise NoSuchKernel(f"{len(found) or 'none'} of the lists that this kernel's {source} are those of threads")
    return found[0]


def by_types(kernel: Kernel) -> Layout:
    """Return the layout by types. Raises OptprobeError."""
    task, paca = partial(kernel.offset, "task_struct"), partial(kernel.offset, "paca_struct")
    return Layout(
        kernel.address("init_task"), task("tasks"), task("thread_node"), task("signal"),
        kernel.offset("signal_struct", "thread_head"),
        task("stack"), task("thread.ksp"), task("pid"), task("comm"), thread_size(kernel),
        kernel.address("paca_ptrs"), paca("paca_index"), paca("__current"), tuple(map(paca, EMERGENCY)),
        (kernel.address("hardirq_ctx"), kernel.address("softirq_ctx")),
        kernel.address("__per_cpu_offset"), kernel.address("runqueues"), kernel.offset("rq", "idle"),
        kernel.address("__cpu_online_mask"), kernel.address("__num_online_cpus"),
    )  # fmt: skip


def by_code(kernel: Kernel) -> list[Layout]:
    """Return all layouts that the code allows. Raises NoSuchKernel."""
    symbols = kernel.symbols
    if not isinstance(symbols, DerivedSymbols):
        raise NoSuchKernel("the code of this kernel is not known")
    switching, machine = _Switching.of(symbols), _Machine.of(symbols)
    stack, emergency = _stacks(symbols, switching.size)
    number, pid, comm = _names(symbols, switching.current)
    return [
        Layout(
            lists.init_task, lists.tasks, lists.thread_node, lists.signal, lists.thread_head,
            stack, switching.sp, pid, comm, switching.size,
            pacas, number, switching.current, emergency, machine.interrupt_stacks,
            offsets, queues, machine.idle, machine.online, machine.online_count,
        )
        for lists in _Lists.found(kernel, symbols)
        for pacas, (offsets, queues) in product(machine.pacas, permutations(machine.queues))
    ]


def missing(kernel: Kernel) -> str:
    """Return why saved PCs cannot be enumerated in this kernel, in words; "" where they can."""
    try:
        derive(kernel), exiting_of(kernel)
    except OptprobeError as error:
        return error.message
    return ""


# --- what the code says ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Switching:
    """Where a thread's SP is saved, the paca's current thread, the size of a stack."""

    sp: int
    current: int
    size: int

    @staticmethod
    def of(symbols: DerivedSymbols) -> _Switching:
        name = "_switch"
        following = [(word, offset) for word, offset in _through(symbols, name, {NEXT}) if opcode(word) == ADDI]
        thread = _one(name, (-offset for _, offset in following))
        stores = ((word, at) for word, at in _through(symbols, name, {PREVIOUS}) if _is(STD, word))
        saved = _one(name, (at for word, at in stores if rt(word) == SP))
        held = {rt(word) for word, _ in following}
        stored = (at for word, at in _through(symbols, name, {PACA}) if _is(STD, word) and rt(word) in held)
        words = [word_of(insn.data) for insn in symbols.code(name)]
        sizes = (size for word in words if opcode(word) == ROTATE and (size := _clears_below(word)) in PLAUSIBLE)
        return _Switching(thread + saved, next(stored, 0) or _one(name, ()), _one(name, sizes))


def _stacks(symbols: DerivedSymbols, size: int) -> tuple[int, tuple[int, ...]]:
    """Return the offset of the stack in a thread, and of the ends of emergency stacks in a paca."""
    name = "validate_sp"
    stack = _one(name, (offset for word, offset in _through(symbols, name, {NEXT}) if _is(LD, word)))
    emergency, loaded = [], dict[int, int]()
    for insn in symbols.code(name):
        word = word_of(insn.data)
        if opcode(word) == ADDI and simm(word) == -size and ra(word) in loaded:
            emergency.append(loaded[ra(word)])
        for register in symbols.overwritten(insn, loaded, unknown=False):
            del loaded[register]
        if _is(LD, word):
            loaded[rt(word)] = simm(word & ~3)
    return stack, tuple(dict.fromkeys(emergency)) or (_one(name, ()),)


def _names(symbols: DerivedSymbols, current: int) -> tuple[int, int, int]:
    """Return the offsets of the number in a paca, and of pid and name in a thread."""
    name = "dump_stack_print_info"
    number = _one(name, (offset for word, offset in _through(symbols, name, {PACA}) if opcode(word) == LHZ))

    def is_current(word: int) -> bool:
        return _is(LD, word) and (ra(word), simm(word & ~3)) == (PACA, current)

    of_thread = list(_through(symbols, name, (), is_current))
    pid = _one(name, (offset for word, offset in of_thread if opcode(word) == LWZ))
    return number, pid, _one(name, (offset for word, offset in of_thread if opcode(word) == ADDI))


@dataclass(frozen=True, slots=True)
class _Lists:
    """`init_task`, and offsets of a thread and its signal."""

    init_task: int
    tasks: int
    thread_node: int
    signal: int
    thread_head: int

    @staticmethod
    def found(kernel: Kernel, symbols: DerivedSymbols) -> list[_Lists]:
        """Yield candidates. The step from a thread to the next subtracts a node's offset; a comparison with a head adds
        it. init_task is the only thread of its process: its node and the head lead to each other.
        """
        name = "normalize_rt_tasks"
        words = [word_of(insn.data) for insn in symbols.code(name)]
        loads = {(ra(word), simm(word & ~3)) for word in words if _is(LD, word) and ra(word) not in (SP, PACA)}
        added = {(ra(word), simm(word)) for word in words if opcode(word) == ADDI}
        nodes = {offset for _, offset in loads if offset > 0 and any(less == -offset for _, less in added)}
        found = []
        for init_task, (tasks, node) in product(symbols.constants_of(name).made, permutations(nodes, 2)):
            members = {offset + base for _, offset in loads for base in (0, tasks)}
            for signal, (_, head) in product(sorted(members), sorted(loads & added)):
                ways = _Lists(init_task, tasks, node, signal, head)
                if ways._meet(kernel):
                    found.append(ways)
        return found

    def _meet(self, kernel: Kernel) -> bool:
        try:
            head = kernel.word(self.init_task + self.signal) + self.thread_head
            node = self.init_task + self.thread_node
            return kernel.word(node) == head and kernel.word(head) == node
        except OptprobeError:
            return False


@dataclass(frozen=True, slots=True)
class _Machine:
    """pacas: where `paca_ptrs` may be; queues: __per_cpu_offset and runqueues, in either order."""

    pacas: tuple[int, ...]
    interrupt_stacks: tuple[int, ...]
    queues: tuple[int, ...]
    idle: int
    online: int
    online_count: int

    @staticmethod
    def of(symbols: DerivedSymbols) -> _Machine:
        stacks = symbols.constants_of("validate_sp")
        arrays = tuple(sorted(made for made in stacks.made if made not in stacks.used))
        queues = symbols.constants_of("idle_task").made
        words = [word_of(insn.data) for insn in symbols.code("idle_task")]
        idle = _one("idle_task", (simm(word & ~3) for word in words if _is(LD, word) and ra(word) != SP))
        online = symbols.constants_of("set_cpu_online").made[:2]
        if not len(arrays) == len(queues) == len(online) == 2:
            raise NoSuchKernel("this kernel's code does not tell of its interrupt stacks and run queues")
        return _Machine(stacks.used, arrays, queues, idle, *online)


# --- whether it holds ------------------------------------------------------------------------------------------------


def _holds(kernel: Kernel, layout: Layout) -> bool:
    """Return whether a walk finds only threads, and idle threads and stacks of CPUs are valid."""
    try:
        those = cpus(kernel, layout)
        threads = Threads(kernel, layout)
        listed = threads.all(())
        running = {kernel.word(cpu.paca + layout.current) for cpu in those} - {0}
        found = threads.all((*running, *(cpu.idle for cpu in those)))
        idle = [found[address] for address in (layout.init_task, *(cpu.idle for cpu in those))]
        pids = [thread.pid for thread in listed.values()]
        stacks = [stack.start for cpu in those for stack in cpu.stacks]
        return (
            all(thread.name.startswith(IDLE_NAME) and not thread.pid for thread in idle)
            and len(pids) == len(set(pids)) > 1
            and _sleep(kernel, layout, [found[address] for address in found.keys() - running])
            and all(stack > 0 and not stack % layout.thread_size for stack in stacks)
        )
    except OptprobeError:
        return False


def _sleep(kernel: Kernel, layout: Layout, threads: Sequence[Thread]) -> bool:
    """Return whether saved SPs are in stacks and most have a back chain that leads up; a new thread has none yet."""
    alive = [thread for thread in threads if thread.stack]
    ends = [thread.stack + layout.thread_size for thread in alive]
    if not all(thread.stack < thread.sp < end for thread, end in zip(alive, ends, strict=True)):
        return False
    callers = [(thread.sp, kernel.word(thread.sp), end) for thread, end in zip(alive, ends, strict=True)]
    return 2 * sum(sp + HEADER_OF_FRAME <= caller <= end for sp, caller, end in callers) > len(callers)


# --- reading code ----------------------------------------------------------------------------------------------------


def _through(
    symbols: DerivedSymbols,
    function: str,
    held: Iterable[int],
    loads: Callable[[int], bool] = lambda _: False,
) -> Iterator[tuple[int, int]]:
    """Yield (word, offset) of instructions with one value as their base: in registers `held`, or that one `loads`."""
    now = set(held)
    for insn in symbols.code(function):
        word = word_of(insn.data)
        if ra(word) in now and (opcode(word) == ADDI or 32 <= opcode(word) < 56):
            yield word, simm(word)
        elif ra(word) in now and opcode(word) in (LD, STD):
            yield word, simm(word & ~3)
        now.difference_update(symbols.overwritten(insn, now, unknown=False))
        if loads(word):
            now.add(rt(word))


def _is(form: int, word: int) -> bool:
    """Return whether it is ld or std: other instructions share their opcodes."""
    return opcode(word) == form and not word & 3


def _clears_below(word: int) -> int:
    """Return, for `clrrdi` (`rldicr` by 0), 1 shifted by the number of bits cleared; 0 for other rotations."""
    last = word >> 6 & 31 | word & 32
    return 1 << 63 - last if word >> 2 & 7 == 1 and not word >> 11 & 31 and not word & 2 else 0


def _one(function: str, found: Iterable[int]) -> int:
    """Return the value that a function's code gives, if it gives one. Raises NoSuchKernel."""
    distinct = set(found)
    if len(distinct) != 1:
        raise NoSuchKernel(f"the code of {function} does not tell where this kernel keeps its threads and stacks")
    return distinct.pop()
