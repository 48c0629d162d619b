"""Lower a program to native code, through the codegen backend of an ISA.

    ┌─────────────────────────┐
    │ save what the condition │  little, or nothing: most hits end at the condition
    │   uses and what lives   │
    │ condition ──────────────┼─► false ──┐
    │ save what the actions   │           │
    │   use beyond that       │           │
    │ action ─────────────────┼─► fault   │   faults + 1, then the next action
    │ …                       │           │
    │ restore                 │           │
    │ stop: restore, ─────────┼─► the pad │   where GDB has a breakpoint; then behind the program
    │ fault of the condition  │           │   faults + 1
    │ restore ◄───────────────┼───────────┘
    └─────────────────────────┘
Every used register is saved, and which are used is known once code is made. What saves those of the actions is put
before them then. Where that would change their code, and for the condition, code is made until both sets agree: each
time the registers that were used before are saved, and a register that the program reads is read from its saved place;
this may take another register, so the set of used ones grows, up to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from gdb_optprobe.handlers.ir import (
    And,
    BytesLoad,
    Cell,
    Clock,
    Constant,
    Emit,
    Expr,
    HashMap,
    Literal,
    Operand,
    Program,
    Put,
    Records,
    Register,
    Slice,
    Statement,
    Stop,
    StringLoad,
    Update,
    children,
    dereferences,
    may_fault,
    nodes,
    operands,
)
from gdb_optprobe.handlers.lower_expressions import ExpressionLowering, Locals, NotLowered
from gdb_optprobe.handlers.lower_maps import count_by, layout, record, update
from gdb_optprobe.handlers.lower_statements import IN_REGISTERS, Facts, StatementLowering, variables_in_registers
from gdb_optprobe.isa.base import Code, Dead
from gdb_optprobe.isa.codegen import (
    Address,
    Arithmetic,
    Backend,
    Emitter,
    EntryState,
    Label,
    OuterSaves,
    ProbeReadRoutines,
    RegisterPool,
    TooManyRegisters,
    emitted_code,
    noted,
    noted_save,
)
from gdb_optprobe.maps.aggregate import number as as_number
from gdb_optprobe.maps.hash_map import OVERFLOW
from gdb_optprobe.maps.ring import RingLayout

FAULT = "a fault: counted"
FRAME = 16
"""Bytes of a frame of one word: stacks are aligned to that."""
RESTORED = "restored"


@dataclass(frozen=True, slots=True)
class LoweringContext:
    """The surroundings of a program.

    address: the probed address.
    objects: addresses of `program.objects`, in their order; of Records, that of their ring.
    faults:  address of the 8 bytes that count the probe's faults.
    dead:    before the probed instruction.
    per_cpu, base, readers: see isa.codegen.EntryState.
    table_bits: of HashMapLayout. ring: its layout.
    first_kind: the kind of records of the program's first object; that of the next object is one more.
    cpu:     this CPU's number.
    pad:     address that a program jumps to in order to stop; None if none can.
    passed:  dead registers behind the program, if it may stop.
    kept:    see isa.codegen.EntryState.
    maps:    addresses of the session's maps, by name. most: keys that they have room for, where the program says more.
    lost:    address of the 8 bytes that count values without room in a table, by object; empty: each table has its own.
    """

    address: int
    objects: tuple[int, ...] = ()
    faults: int = 0
    dead: Dead = field(default_factory=Dead)
    per_cpu: int | None = None
    base: int | None = None
    table_bits: int = 10
    ring: RingLayout | None = None
    first_kind: int = 0
    cpu: Expr | None = None
    readers: ProbeReadRoutines | None = None
    pad: int | None = None
    passed: Dead = field(default_factory=Dead)
    kept: OuterSaves = field(default_factory=OuterSaves)
    maps: Mapping[str, int] = field(default_factory=dict)
    most: Mapping[str, int] = field(default_factory=dict)
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UsedRegisters:
    """What the condition, with its fault, and the actions use: registers, and all else that a backend saves."""

    condition: frozenset[str] = frozenset()
    actions: frozenset[str] = frozenset()

    def __or__(self, other: UsedRegisters) -> UsedRegisters:
        return UsedRegisters(self.condition | other.condition, self.actions | other.actions)


class _Registers(Protocol):
    def __or__(self, more: Any, /) -> Any: ...


Used = TypeVar("Used", bound=_Registers)


def lower(program: Program, around: LoweringContext, machine: Backend) -> Code:
    """Return the code of a program. Raises NotLowered."""
    of_cpu = {node.name for node in nodes(around.cpu) if isinstance(node, Register)} if around.cpu else set()
    # A stop shows all registers, the dead ones too.
    dead = around.dead if program.stop is None else Dead()
    facts = Facts(program)
    reads = around.kept.in_place(facts.registers | of_cpu)
    before = EntryState(dead, reads, around.per_cpu, around.base, around.readers, around.kept)
    reading = common_reading(facts)

    def emit(variables: int, may_hold: bool, used: UsedRegisters) -> tuple[Emitter, UsedRegisters]:
        emitter = machine.emitter(before)
        return emitter, _emit(facts, reading, around, machine, before, emitter, used, variables, may_hold)

    for may_hold in (True, False):
        with suppress(TooManyRegisters):
            return lower_saving(partial(emit, IN_REGISTERS, may_hold), UsedRegisters())
    return lower_saving(partial(emit, 0, False), UsedRegisters())


def lower_saving(emit: Callable[[Used], tuple[Emitter, Used]], nothing: Used) -> Code:
    """Return code that saves all registers that it uses; which these are is known once it is emitted.

    emit: emits the code, with the registers saved that were used before; returns those that are used now and not saved.
    """
    used = nothing
    while True:
        emitter, now = emit(used)
        if (more := used | now) == used:
            return emitted_code(emitter)
        used = more


def _emit(
    facts: Facts,
    reading: Expr | None,
    around: LoweringContext,
    machine: Backend,
    before: EntryState,
    emit: Emitter,
    used: UsedRegisters,
    variables: int,
    may_hold: bool,
) -> UsedRegisters:
    """Emit the code with the registers `used` saved; return others that are to be saved.

    reading: see `common_reading`. variables: how many may have a register. may_hold: whether entries of maps may.
    Raises TooManyRegisters.
    """
    program, pc = facts.program, (machine.pc, around.address)
    end = Label()
    words = ExpressionLowering(emit, pc, Locals(program.quiet))
    saved = machine.kept(used.condition, before)
    emit.pool = condition = _pool(machine, before)
    noted_save(emit, saved)
    if program.condition is not None:
        with refused(program.condition), noted(emit, "condition"):
            for part in _conjuncts(program.condition):
                if reading is not None and not words.locals.held and Clock() in nodes(part):
                    words.locals.held[reading] = _read_clock(emit, pc, program, reading)
                words.jump(part, False, end)
        if unsaved := _unsaved(condition, saved, machine, before):
            return UsedRegisters(unsaved)
    # What is saved may be overwritten.
    dead = replace(before.dead, registers=before.dead.registers | {*saved})
    emit.pool = actions = _pool(machine, replace(before, dead=dead))
    more = [name for name in machine.kept(used.actions, before) if name not in saved]
    if used.actions:
        noted_save(emit, more)
    else:
        emit.open_save()
    if reading is not None:
        with _held(emit, pc, program, reading, words.locals.held.get(reading), not variables) as held:
            _emit_actions(program, around, emit, pc, Locals(held=held), is_last=not variables)
    elif facts.is_flat:
        _emit_actions(program, around, emit, pc, Locals())
    else:
        _emit_statements(facts, around, emit, pc, variables, may_hold)
    if not used.actions:
        more = [name for name in machine.kept(actions.used, before) if name not in saved]
        if not emit.close_save(more):
            assert actions.used, "what was read is in a register"
            return UsedRegisters(actions=frozenset(actions.used))
    with noted(emit, RESTORED):
        emit.restore(more)
    emit.pool = condition
    if program.stop is not None:
        if around.pad is None:
            raise NotLowered(program.stop, "native code cannot stop here")
        with noted(emit, "stop"):
            emit.restore_and_jump(saved, around.pad)
    if words.faulted or words.apart:
        with noted(emit, "condition"), noted(emit, FAULT if words.faulted else "a fault: 0"):
            if program.stop is None or words.apart:
                emit.jump(end)
            words.apart.emit(condition)
            if words.faulted:
                emit.bind(words.fault)
                emit.atomic_add(Address(offset=around.faults, near=True), 1)
    with noted(emit, RESTORED):
        emit.bind(end)
        emit.restore(saved, around.passed if program.stop is not None else Dead())
    return UsedRegisters(
        _unsaved(condition, saved, machine, before), _unsaved(actions, (*saved, *more), machine, before)
    )


def _unsaved(pool: RegisterPool, saved: Sequence[str], machine: Backend, before: EntryState) -> frozenset[str]:
    """Return what was used of a pool, if some of it should be saved and is not."""
    return frozenset(pool.used) if {*machine.kept(pool.used, before)}.difference(saved) else frozenset()


def _pool(machine: Backend, before: EntryState) -> RegisterPool:
    return RegisterPool(machine.order(before), before.dead.registers - before.reads, before.reads)


def common_reading(facts: Facts) -> Expr | None:
    """Return what a hit reads of the clock once for all: its condition, its actions and the times of its records.

    It is the largest expression that all of them have in common, such as the time of a call. None where only one of
    them reads it (a record reads its time for its fields too), and for scripts, in which each reading is its own.
    """
    program = facts.program
    if not facts.is_flat:
        return None
    readings = [*_readings(program.condition)] if program.condition is not None else []
    for action in program.actions:
        found = [around for operand in operands(action) for around in _readings(operand)]
        readings += [(Clock(),)] if isinstance(action, Emit) else found
    if len(readings) < 2:
        return None
    common: Expr = Clock()
    for first, *others in zip(*readings, strict=False):
        if isinstance(first, StringLoad | BytesLoad | Slice | Literal) or may_fault(first) or {*others} != {first}:
            break
        common = first
    return common


def _readings(node: Operand) -> Iterator[tuple[Operand, ...]]:
    """Yield, of each reading of the clock in a node, that and what is around it, from the inside out."""
    if isinstance(node, Clock):
        yield (node,)
    for child in children(node):
        yield from ((*within, node) for within in _readings(child))


def _conjuncts(node: Expr) -> Iterator[Expr]:
    """Yield what has to hold, in the order in which it is evaluated."""
    if isinstance(node, And):
        yield from _conjuncts(node.left)
        yield from _conjuncts(node.right)
    else:
        yield node


def _read_clock(emit: Emitter, pc: tuple[str, int], program: Program, reading: Expr) -> str:
    """Emit: read the clock. Return the register that has it, which is not freed."""
    clobbered = emit.probe_read_clobbers if any(map(dereferences, program.operands())) else ()
    at = emit.pool.allocate(clobbered)
    with noted(emit, "the clock, once for all"):
        ExpressionLowering(emit, pc).into(at, reading)
    return at


@contextmanager
def _held(
    emit: Emitter, pc: tuple[str, int], program: Program, reading: Expr, at: str | int | None, in_frame: bool
) -> Iterator[dict[Expr, str | int]]:
    """Have a reading of the clock in a register for the block, or in a frame. at: the register that has it already."""
    if isinstance(at, str):
        emit.pool.reserve(at)
    else:
        at = _read_clock(emit, pc, program, reading)
    if not in_frame:
        yield {reading: at}
        return
    emit.open_frame(FRAME)
    emit.store(emit.local(0), at)
    emit.pool.free(at)
    yield {reading: 0}
    emit.close_frame()


def _emit_actions(
    program: Program, around: LoweringContext, emit: Emitter, pc: tuple[str, int], places: Locals, is_last: bool = True
) -> None:
    """Emit actions, one after the other. is_last: there is no other way to lower them. Raises TooManyRegisters."""
    objects = iter(enumerate(around.objects))
    for action in program.actions:
        if isinstance(action, Stop):
            continue
        assert isinstance(action, Update | Emit | Put)
        index, address = next(objects) if not isinstance(action, Put) else (0, 0)
        with refused(action) if is_last else nullcontext():
            lower_action(emit, pc, around, action, index, address, places)


def _emit_statements(
    facts: Facts, around: LoweringContext, emit: Emitter, pc: tuple[str, int], variables: int, may_hold: bool
) -> None:
    """Emit the statements of a script, with so many variables in registers."""
    places = [*zip(facts.objects, enumerate(around.objects), strict=True)]

    def ordinary(action: Update | Emit | Put, words: ExpressionLowering) -> None:
        index, address = (0, 0)
        if not isinstance(action, Put):
            index, address = next(place for target, place in places if _is_same(target, action.target))
        with noted(emit, "kept for the stop" if isinstance(action, Put) else action.target.name):
            _lower_action(emit, words, around, action, index, address)

    with variables_in_registers(emit, facts, variables) as registers:
        lowering = StatementLowering(emit, pc, facts, registers, around.maps, around.most, around.faults, may_hold)
        with nullcontext() if variables else refused(facts.program.actions[0]):
            lowering.lower(ordinary)


def _is_same(target: object, other: object) -> bool:
    """Return whether two objects of a program are one: a script's records by their kind, others by identity."""
    return target is other or (isinstance(target, Records) and target.kind is not None and target == other)


@contextmanager
def refused(node: Expr | Statement) -> Iterator[None]:
    """Raise NotLowered if the block needs more registers than there are."""
    try:
        yield
    except TooManyRegisters as error:
        raise NotLowered(node, "more registers are needed at once than there are") from error


@contextmanager
def cell_address(emit: Emitter, words: ExpressionLowering, by: tuple[Operand, ...], address: int) -> Iterator[Address]:
    """Compute where a cell is: at `address`, or in an array of words there, by its index."""
    if not by:
        yield Address(offset=address, near=True)
        return
    (index,) = by
    assert not isinstance(index, StringLoad | BytesLoad | Slice | Literal)
    with emit.pool.scratch() as at:
        words.into(at, index)
        emit.binary(Arithmetic.SHL, at, at, 3, 64, False)
        emit.address(at, Address(at, as_number(address, True), near=True))
        yield Address(at)


def lower_action(
    emit: Emitter,
    pc: tuple[str, int],
    around: LoweringContext,
    action: Update | Emit | Put,
    index: int,
    address: int,
    places: Locals | None = None,
) -> None:
    """Lower an action. index: of its object in the program. address: of that object. Raises TooManyRegisters."""
    words = ExpressionLowering(emit, pc, places)
    with noted(emit, "kept for the stop" if isinstance(action, Put) else action.target.name):
        _lower_action(emit, words, around, action, index, address)
        if words.faulted:
            with noted(emit, FAULT):
                done = Label()
                emit.jump(done)
                emit.bind(words.fault)
                emit.atomic_add(Address(offset=around.faults, near=True), 1)
                emit.bind(done)


def _lower_action(
    emit: Emitter,
    words: ExpressionLowering,
    around: LoweringContext,
    action: Update | Emit | Put,
    index: int,
    address: int,
) -> None:
    match action:
        case Update(HashMap() as table):
            lost = around.lost[index] if around.lost else address + OVERFLOW
            count_by(emit, words, action, layout(table, around.table_bits), address, lost)
        case Update(Cell(_, aggregate), value, by):
            with words.operand(value or Constant(0)) as operand, cell_address(emit, words, by, address) as at:
                update(emit, aggregate, at, operand)
        case Put(place, value):
            with words.operand(value) as operand, words.memory(place) as memory:
                emit.store(memory, operand)
        case Emit():
            if around.ring is None:
                raise NotLowered(action, "there is no ring here")
            if around.cpu is None:
                raise NotLowered(action, "a record has the CPU's number, and where this kernel keeps that is not known")
            kind = action.target.kind if action.target.kind is not None else around.first_kind + index
            record(emit, words, action, around.ring, address, kind, around.cpu)
