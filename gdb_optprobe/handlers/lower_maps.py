"""Lower an action's effect on a map: an aggregate, a hash map, a ring (maps/), as native code, each word atomically."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from gdb_optprobe.handlers.ir import (
    BytesLoad,
    Clock,
    Constant,
    Emit,
    Expr,
    HashMap,
    Literal,
    Slice,
    StringLoad,
    Update,
    dereferences,
    nodes,
)
from gdb_optprobe.handlers.lower_expressions import Apart, ExpressionLowering
from gdb_optprobe.isa.codegen import Address, Arithmetic, Comparison, Emitter, Label, MemoryValue, noted
from gdb_optprobe.maps import ring
from gdb_optprobe.maps.aggregate import (
    MASK,
    Aggregate,
    Average,
    Count,
    Greatest,
    Least,
    Linear,
    LogLinear,
    Powers,
    Stats,
    Sum,
)
from gdb_optprobe.maps.aggregate import number as as_number
from gdb_optprobe.maps.hash_map import CLAIMED, FACTOR, PROBES, READY, HashMapLayout
from gdb_optprobe.maps.ring import RingLayout


def layout(table: HashMap, bits: int) -> HashMapLayout:
    """Return the layout of a table. bits: see HashMapLayout."""
    return HashMapLayout(table.key_size // 8, table.aggregate, bits)


def count_by(
    emit: Emitter, words: ExpressionLowering, action: Update, table: HashMapLayout, at: int, lost: int
) -> None:
    """Lower an update of a table: add a value to the aggregate of its key. lost: counts those that find no room."""
    assert isinstance(action.target, HashMap)
    with ExitStack() as stack:
        with noted(emit, "value"):
            value = stack.enter_context(words.operand(action.value or Constant(0)))
        key: list[str | int] = []
        for part, column in zip(action.by, action.target.columns, strict=True):
            with noted(emit, f"key {column.label}"):
                key += words.words(stack, part)
        slot = stack.enter_context(emit.pool.scratch())
        done, found = Label(), Label()
        with noted(emit, "lookup"):
            _first_slot(emit, slot, key, table, at)
            with emit.pool.scratch() as left:
                _search(emit, slot, left, key, table, found)
        with noted(emit, "no room: counted"):
            emit.atomic_add(Address(offset=lost, near=True), 1)
            emit.jump(done)
        with noted(emit, "update"):
            emit.bind(found)
            update(emit, table.aggregate, Address(slot, table.value_offset), value)
            emit.bind(done)


def _first_slot(emit: Emitter, slot: str, key: Sequence[str | int], table: HashMapLayout, at: int) -> None:
    """Compute the address of the slot where the search for the key begins: HashMapLayout.place."""
    with emit.pool.scratch() as factor:
        emit.constant(factor, FACTOR)
        if isinstance(key[0], int):
            emit.constant(slot, key[0])
        else:
            emit.copy(slot, key[0])
        for word in key[1:]:
            emit.binary(Arithmetic.MUL, slot, slot, factor, 64, False)
            emit.binary(Arithmetic.XOR, slot, slot, word, 64, False)
        emit.binary(Arithmetic.MUL, slot, slot, factor, 64, False)
    emit.binary(Arithmetic.SHR, slot, slot, 64 - table.bits, 64, False)
    emit.binary(Arithmetic.MUL, slot, slot, table.slot_size, 64, False)
    emit.address(slot, Address(slot, as_number(at + 8, True), near=True))


def _search(emit: Emitter, slot: str, left: str, key: Sequence[str | int], table: HashMapLayout, found: Label) -> None:
    """Search the key's slot: jump to `found` with it in `slot`; fall through if there is none."""
    look, other, not_ready = Label(), Label(), Label()
    state = Address(slot)
    emit.constant(left, PROBES)
    emit.bind(look)
    emit.branch(Comparison.NE, MemoryValue(state), READY, False, not_ready)
    emit.acquire()
    *before, last = [(MemoryValue(Address(slot, 8 + 8 * index)), word) for index, word in enumerate(key)]
    for there, word in before:
        emit.branch(Comparison.NE, there, word, False, other)
    emit.branch(Comparison.EQ, *last, False, found)
    emit.bind(other)
    emit.binary(Arithmetic.ADD, slot, slot, table.slot_size, 64, False)
    emit.binary(Arithmetic.SUB, left, left, 1, 64, False)
    emit.branch(Comparison.NE, left, 0, False, look)
    full = Label()
    emit.jump(full)
    emit.bind(not_ready)
    emit.branch(Comparison.EQ, MemoryValue(state), CLAIMED, False, other)
    emit.claim(state, look)
    for there, word in (*before, last):
        emit.store(there.memory, word)
    emit.publish(state, READY)
    emit.jump(found)
    emit.bind(full)


def record(
    emit: Emitter, words: ExpressionLowering, action: Emit, layout: RingLayout, at: int, kind: int, cpu: Expr
) -> None:
    """Write a record into the ring at an address; a void one if a field faults."""
    with ExitStack() as stack:
        number, place = (stack.enter_context(emit.pool.scratch()) for _ in range(2))
        full = Label()
        with noted(emit, "a place in the ring"):
            emit.atomic_fetch_add(number, Address(offset=at + ring.NEXT, near=True), 1)
            if not layout.overwrites:
                emit.load(place, MemoryValue(Address(offset=at + ring.FIRST, near=True)))
                emit.binary(Arithmetic.SUB, place, number, place, 64, False)
                emit.branch(Comparison.GE, place, layout.places, False, full)
            emit.binary(Arithmetic.AND, place, number, layout.places - 1, 64, False)
            emit.binary(Arithmetic.MUL, place, place, layout.record_size, 64, False)
            emit.address(place, Address(place, as_number(at + ring.HEADER, True), near=True))
        if layout.overwrites:
            with noted(emit, "its lock"):
                _claim_place(emit, number, place, layout, full)
        with noted(emit, "time, kind, CPU"):
            fields = words.with_own_fault()
            if Clock() not in words.locals.held and any(Clock() in nodes(field) for field in action.fields):
                clobbered = emit.probe_read_clobbers if any(map(dereferences, action.fields)) else ()
                now = stack.enter_context(emit.pool.scratch(clobbered))
                words.into(now, Clock())
                fields = words.with_own_fault({Clock(): now})
            with fields.word(Clock()) as now:
                emit.store(Address(place, ring.TIME), now)
            emit.store(Address(place, ring.KIND), kind, 4)
            with words.operand(cpu) as word:
                emit.store(Address(place, ring.CPU), word, 4)
        _store_fields(emit, fields, place, action)
        if action.target.stack:
            with noted(emit, "copy of the stack"):
                (_try_stack if action.target.tried else _copy_stack)(emit, fields, action, place)
        with noted(emit, "publish"):
            _finish(emit, number, place, layout)
        if fields.faulted:
            with noted(emit, "a fault: the record is void"):
                emit.jump(full)
                emit.bind(fields.fault)
                emit.store(Address(place, ring.KIND), ring.VOID, 4)
                _finish(emit, number, place, layout)
                emit.jump(words.fault)
        emit.bind(full)


def _claim_place(emit: Emitter, number: str, place: str, layout: RingLayout, dropped: Label) -> None:
    """Claim the place; jump to `dropped` where another hit has it, or has put a newer record there."""
    mine = Label()
    emit.claim(Address(place, layout.lock), dropped)
    emit.branch(Comparison.LE, MemoryValue(Address(place, ring.NUMBER)), number, False, mine)
    emit.publish(Address(place, layout.lock), 0)
    emit.jump(dropped)
    emit.bind(mine)


def _finish(emit: Emitter, number: str, place: str, layout: RingLayout) -> None:
    emit.binary(Arithmetic.ADD, number, number, 1, 64, False)
    if layout.overwrites:
        emit.store(Address(place, ring.NUMBER), number)
        emit.publish(Address(place, layout.lock), 0)
    else:
        emit.publish(Address(place, ring.NUMBER), number)


def _copy_stack(emit: Emitter, words: ExpressionLowering, action: Emit, place: str) -> None:
    """Copy the stack from its end down, so that one register counts and indexes."""
    most, fields = action.target.stack, ring.FIELDS + action.target.fields
    copy, enough, done = Label(), Label(), Label()
    with words.word(_stack_pointer(action)) as sp, emit.pool.scratch() as index, emit.pool.scratch() as word:
        emit.load(index, MemoryValue(Address(place, fields - 8)))
        emit.binary(Arithmetic.SHR, index, index, 3, 64, False)
        emit.branch(Comparison.EQ, index, 0, False, done)
        emit.branch(Comparison.LE, index, most, False, enough)
        emit.constant(index, most)
        emit.bind(enough)
        emit.bind(copy)
        emit.load(word, MemoryValue(Address(sp, -8, index)))
        emit.store(Address(place, fields - 8, index), word)
        emit.binary(Arithmetic.SUB, index, index, 1, 64, False)
        emit.branch(Comparison.NE, index, 0, False, copy)
        emit.bind(done)


def _try_stack(emit: Emitter, words: ExpressionLowering, action: Emit, place: str) -> None:
    """Copy the stack word by word, up to the first that is not mapped."""
    most, fields, sp = action.target.stack, ring.FIELDS + action.target.fields, _stack_pointer(action)
    copy, done = Label(), Label()
    with emit.pool.scratch() as at, emit.pool.scratch() as taken:
        words.into(at, sp)
        emit.constant(taken, 0)
        emit.bind(copy)
        with emit.pool.scratch() as word, words.using_probe_read(sp):
            emit.probe_read(word, at, 8, done)
            emit.store(Address(place, fields, taken), word)
        emit.binary(Arithmetic.ADD, at, at, 8, 64, False)
        emit.binary(Arithmetic.ADD, taken, taken, 1, 64, False)
        emit.branch(Comparison.LT, taken, most, False, copy)
        emit.bind(done)
        emit.binary(Arithmetic.SHL, taken, taken, 3, 64, False)
        emit.store(Address(place, fields - 8), taken)


def _stack_pointer(action: Emit) -> Expr:
    """Return the stack pointer: the first field, see ir.Records."""
    found = action.fields[0]
    assert not isinstance(found, StringLoad | BytesLoad | Slice | Literal)
    return found


def _store_fields(emit: Emitter, words: ExpressionLowering, place: str, action: Emit) -> None:
    """Store the fields one after the other: each needs registers only for itself, a text one per word."""
    at = ring.FIELDS
    for field, column in zip(action.fields, action.target.columns, strict=True):
        with noted(emit, column.label), ExitStack() as stack:
            if isinstance(field, StringLoad) and not field.mapped:
                words.store_text(field, Address(place, at))
                at += -(-field.size // 8) * 8
                continue
            if isinstance(field, Slice):
                words.store_bytes(field, Address(place, at))
                at += field.size
                continue
            for word in words.words(stack, field):
                emit.store(Address(place, at), word)
                at += 8


def update(emit: Emitter, aggregate: Aggregate, at: Address, value: str | int, apart: Apart | None = None) -> None:
    """Lower `aggregate.update` for the aggregate at an address. value: a register or a word; of a count, any."""
    match aggregate:
        case Count():
            emit.atomic_add(at, 1)
        case Sum():
            emit.atomic_add(at, value)
        case Average() | Stats():
            emit.atomic_add(at, 1)
            emit.atomic_add(_beyond(at, 1), value)
        case _ if isinstance(value, int):
            with emit.pool.scratch() as register:
                emit.constant(register, value)
                update(emit, aggregate, at, register, apart)
        case Least(signed) | Greatest(signed):
            emit.atomic_extreme(Comparison.LT if isinstance(aggregate, Least) else Comparison.GT, at, value, signed)
            emit.store(_beyond(at, 1), 1)
        case Powers(signed):
            _powers(emit, signed, at, value, apart if signed else None)
        case LogLinear():
            _log_linear(emit, aggregate, at, value)
        case Linear():
            _linear(emit, aggregate, at, value)


def _beyond(at: Address, words: int) -> Address:
    return replace(at, offset=at.offset + 8 * words)


def _powers(emit: Emitter, signed: bool, at: Address, value: str, apart: Apart | None) -> None:
    """Add 1 to a bucket: the first word counts negative values, the second 0, the third 1, of logarithm 0."""
    found, few, less = Label(), Label(), 0
    with emit.pool.scratch() as index:

        def not_positive() -> None:
            emit.bind(few)
            emit.constant(index, -1 & MASK)
            emit.branch(Comparison.EQ, value, 0, False, found)
            emit.constant(index, -2 & MASK)
            emit.jump(found)

        if apart is not None:
            emit.branch(Comparison.LE, value, 0, True, few)
            apart.put(emit.pool, not_positive)
        elif signed:
            emit.constant(index, -2 & MASK)
            emit.branch(Comparison.LT, value, 0, True, found)
        if signed or apart is not None:
            emit.logarithm(index, value, any_set=apart is not None)
            emit.bind(found)
        else:
            less = emit.logarithm_less(index, value)
        emit.atomic_add(replace(_beyond(at, 2 + less), index=index), 1)


def _log_linear(emit: Emitter, histogram: LogLinear, at: Address, value: str) -> None:
    """Add 1 to a bucket; see aggregate.bucket."""
    bits, found = histogram.bits, Label()
    with emit.pool.scratch() as index, emit.pool.scratch() as power:
        if histogram.signed:
            emit.constant(index, MASK)
            emit.branch(Comparison.LT, value, 0, True, found)
        emit.copy(index, value)
        emit.branch(Comparison.LT, value, 1 << bits, False, found)
        emit.logarithm(power, value)
        emit.binary(Arithmetic.SUB, power, power, bits, 64, False)
        emit.binary(Arithmetic.SHR, index, value, power, 64, False)
        emit.binary(Arithmetic.SHL, power, power, bits, 64, False)
        emit.binary(Arithmetic.ADD, index, index, power, 64, False)
        emit.bind(found)
        emit.atomic_add(replace(_beyond(at, 1), index=index), 1)


def _linear(emit: Emitter, histogram: Linear, at: Address, value: str) -> None:
    """Add 1 to a bucket. From low on, the distance from it is an unsigned word, whatever the sign."""
    below, above, done = Label(), Label(), Label()
    low, span = histogram.low & MASK, histogram.high - histogram.low
    if low or histogram.signed:
        emit.branch(Comparison.LT, value, low, histogram.signed, below)
    with emit.pool.scratch() as index:
        emit.binary(Arithmetic.SUB, index, value, low, 64, False)
        emit.branch(Comparison.GE, index, span, False, above)
        if histogram.step & histogram.step - 1:
            emit.binary(Arithmetic.DIV, index, index, histogram.step, 64, False)
        elif histogram.step > 1:
            emit.binary(Arithmetic.SHR, index, index, histogram.step.bit_length() - 1, 64, False)
        emit.atomic_add(replace(_beyond(at, 1), index=index), 1)
    emit.jump(done)
    emit.bind(below)
    emit.atomic_add(at, 1)
    emit.jump(done)
    emit.bind(above)
    emit.atomic_add(_beyond(at, histogram.words - 1), 1)
    emit.bind(done)
