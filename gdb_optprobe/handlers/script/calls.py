"""The functions of a script: what they take, what they give, and what they ask of the host."""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import replace

from gdb_optprobe.guest_text import as_typed
from gdb_optprobe.handlers import fold
from gdb_optprobe.handlers.ctype import Array, Enum, Integer, Pointer
from gdb_optprobe.handlers.ir import (
    WORD,
    Assign,
    BytesLoad,
    Constant,
    Copy,
    Cut,
    Delete,
    Expr,
    Has,
    If,
    Length,
    Literal,
    Load,
    Op,
    Part,
    Return,
    Slice,
    Statement,
    StringLoad,
)
from gdb_optprobe.handlers.scope import Missing
from gdb_optprobe.handlers.script import requests, tree
from gdb_optprobe.handlers.script.expressions import DEPTH, Expressions
from gdb_optprobe.handlers.script.formats import check
from gdb_optprobe.handlers.script.place import Place, wrong
from gdb_optprobe.handlers.script.settings import STACK_MODES
from gdb_optprobe.handlers.script.types import (
    INT64,
    NOTHING,
    UINT8,
    UINT64,
    Blob,
    ControlGroup,
    ErrorText,
    Ethernet,
    Folded,
    Internet,
    Nothing,
    Symbol,
    Text,
    Time,
    Type,
    bytes_of,
    integer,
    is_integer,
    is_signed,
    spelled,
)
from gdb_optprobe.handlers.script.types import Stack as StackType
from gdb_optprobe.handlers.script.values import (
    Data,
    Inside,
    Memory,
    Value,
    Word,
    added,
    binary,
    contains_text,
    packed,
    same_text,
    text,
)
from gdb_optprobe.maps.aggregate import (
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

AGGREGATES = {"count": (0, 0), "sum": (1, 1), "min": (1, 1), "max": (1, 1), "avg": (1, 1), "stats": (1, 1),
              "hist": (1, 2), "lhist": (4, 4)}  # fmt: skip
"""Functions that are assigned to a map, and how many arguments they take."""
HISTOGRAMS = ("hist", "lhist")
MOST_BUCKETS = 1000
MOST_JOINED, JOINED_SIZE = 16, 128
_DEEPEST_STACK = 127
STACKS = ("kstack", "ustack")
_CLOCKS = ("boot", "monotonic", "tai", "sw_tai")
_REFUSED = {
    "signal": "it writes into the guest",
    "override": "it changes what the kernel does",
    "skboutput": "packets of the guest are not written to files",
    "path": "the kernel's bpf_d_path is not called",
    "uaddr": "symbols of a program are not known here",
    "cgroupid": "the guest's control groups are not known here",
    "debugf": "nothing is written into the guest's trace_pipe",
    "unwatch": "watchpoints are not supported",
}
_UNSAFE = ("system",)
_CARRIED_OUT = ("clear", "zero", "exit", "cat", "system")
"""What the host does while a script runs."""


class Calls(Expressions):
    """Every method raises OptprobeError, pointing."""

    def call(self, node: tree.Call) -> Value:
        name = node.name
        if name in _REFUSED:
            raise wrong(f"{name}() is not supported: {_REFUSED[name]}", node.where)
        if name in _UNSAFE and not self.declared.unsafe:
            raise wrong(f"{name}() is an unsafe function being used in safe mode", node.where, "-unsafe allows it")
        if self.declared.stays and self.site.provider not in ("BEGIN", "END") and _is_carried_out(node):
            message = f"{name}() is carried out while a script runs, and these probes stay without one"
            raise wrong(message, node.where, "optprobe report shows maps and records, report -clear empties them")
        if name in AGGREGATES:
            raise wrong(f"{name}() should be directly assigned to a map", node.where, f"@ = {name}(…)")
        if name not in FUNCTIONS:
            close = difflib.get_close_matches(name, (*FUNCTIONS, *AGGREGATES), 1)
            raise wrong(f"Unknown function: {name}", node.where, f"did you mean {close[0]}?" if close else "")
        least, most, function = FUNCTIONS[name]
        self._check_count(node, least, most)
        return function(self, node)

    def _check_count(self, node: tree.Call, least: int, most: int) -> None:
        count = len(node.arguments)
        if least <= count <= most:
            return
        if least == most:
            wanted = "no arguments" if not least else f"{least} argument{'s' if least > 1 else ''}"
            raise wrong(f"{node.name}() requires {wanted} ({count} provided)", node.where)
        bound, limit = ("at least", least) if count < least else ("at most", most)
        plural = "s" if limit != 1 else ""
        raise wrong(f"{node.name}() requires {bound} {limit} argument{plural} ({count} provided)", node.where)

    # arguments

    def _words(self, node: tree.Call) -> tuple[Word, ...]:
        """Return all arguments as numbers."""
        values = self.several(node.arguments)
        return tuple(self.integer(value, each.where) for value, each in zip(values, node.arguments, strict=True))

    def _literal_number(self, node: tree.Call, at: int) -> int:
        found = self.value(node.arguments[at])
        if not isinstance(found, Word) or not found.literal or not isinstance(found.expr, Constant):
            message = f"{node.name}() expects a number literal as argument {at + 1}"
            raise wrong(message, node.arguments[at].where)
        value = found.expr.value
        return value - (1 << 64) if value >> 63 else value

    def _literal_text(self, node: tree.Call, at: int) -> bytes:
        """Return a text that is written, or `str($1)`."""
        argument = node.arguments[at]
        if isinstance(argument, tree.String):
            return argument.data
        if isinstance(argument, tree.Call) and argument.name == "str" and len(argument.arguments) == 1:
            found = self._of_parameter(argument)
            if found is not None:
                return found
        message = f"{node.name}() expects a string literal as argument {at + 1}"
        raise wrong(message, argument.where)

    def _map(self, node: tree.Call, with_key: bool = False) -> tree.Map:
        argument = node.arguments[0]
        if not isinstance(argument, tree.Map):
            raise wrong(f"{node.name}() expects a map to be provided", argument.where)
        if argument.key is not None and not with_key:
            message = f"The map passed to {node.name}() should not be indexed by a key"
            raise wrong(message, argument.where)
        if isinstance(self.declared.map(argument.name).value, Nothing) and self.declared.final:
            raise wrong(f"Undefined map: {argument.name}", argument.where)
        return argument

    # aggregates

    def aggregate(self, node: tree.Call) -> tuple[Aggregate, Expr | None]:
        """Return the aggregate that a function makes, and the value that is added to it."""
        self._check_count(node, *AGGREGATES[node.name])
        if node.name == "count":
            return Count(), None
        word = self.integer(self.value(node.arguments[0]), node.arguments[0].where)
        signed = is_signed(word.type)
        match node.name:
            case "sum":
                return Sum(signed), word.expr
            case "min":
                return Least(signed), word.expr
            case "max":
                return Greatest(signed), word.expr
            case "avg":
                return Average(True), word.expr
            case "stats":
                return Stats(True), word.expr
            case "hist":
                bits = self._literal_number(node, 1) if len(node.arguments) > 1 else 0
                if not 0 <= bits <= 5:
                    raise wrong(f"hist: bits {bits} must be 0..5", node.where)
                return LogLinear(bits, True) if bits else Powers(True), word.expr
        return self._linear(node), word.expr

    def _linear(self, node: tree.Call) -> Linear:
        low, high, step = (self._literal_number(node, at) for at in (1, 2, 3))
        if step <= 0:
            raise wrong(f"lhist() step must be >= 1 ({step} provided)", node.where)
        if (high - low) // step > MOST_BUCKETS:
            needed = (high - low) // step
            raise wrong(f"lhist() too many buckets, must be <= {MOST_BUCKETS} (would need {needed})", node.where)
        if low < 0:
            raise wrong(f"lhist() min must be non-negative (provided min {low})", node.where)
        if low > high:
            raise wrong(f"lhist() min must be less than max (provided min {low} and max {high})", node.where)
        if high - low < step:
            given = f"(provided step {step} for range {high - low})"
            raise wrong(f"lhist() step is too large for the given range {given}", node.where)
        return Linear(low, high, step, True)

    # maps

    def _clear(self, node: tree.Call) -> Value:
        self.ask(requests.Clear(self._map(node).name))
        return _nothing()

    def _zero(self, node: tree.Call) -> Value:
        self.ask(requests.Zero(self._map(node).name))
        return _nothing()

    def _delete(self, node: tree.Call) -> Value:
        found = self._map(node, with_key=len(node.arguments) == 1)
        if len(node.arguments) > 1:
            by = self.key(found.name, self.value(node.arguments[1]), node.arguments[1].where)
        else:
            by = self.key_of(found)
        self.emit(Delete(self.map_of(found.name), by))
        return _nothing()

    def _has_key(self, node: tree.Call) -> Value:
        found = self._map(node)
        if isinstance(self.declared.map(found.name).key, Nothing):
            raise wrong("has_key() only accepts maps that have keys", found.where)
        by = self.key(found.name, self.value(node.arguments[1]), node.arguments[1].where)
        into = self.variable()
        self.emit(Has(self.map_of(found.name), by, into))
        return Word(UINT8, into)

    def _len(self, node: tree.Call) -> Value:
        argument = node.arguments[0]
        if isinstance(argument, tree.Map) and argument.key is None:
            into = self.variable()
            self.emit(Length(self.map_of(self._map(node).name), into))
            return Word(INT64, into)
        if isinstance(argument, tree.Name | tree.Call) and argument.name in STACKS:
            _, depth = self._mode_and_depth(argument) if isinstance(argument, tree.Call) else ("", DEPTH)
            walked = self.walked(argument.name == "ustack", depth, argument.where)
            into = self.variable()
            self.emit(Assign(into, walked.count))
            return Word(INT64, into)
        if isinstance(self.value(argument).type, StackType):
            hint = "len(kstack) is counted where the stack is walked"
            raise wrong("the frames of a stack that is kept are not counted", argument.where, hint)
        raise wrong("len() expects a map or stack to be provided", argument.where)

    # output

    def _formatted(self, node: tree.Call) -> Value:
        if not isinstance(node.arguments[0], tree.String):
            raise wrong(f"{node.name}() expects a string literal as argument 1", node.arguments[0].where)
        format_ = as_typed(node.arguments[0].data)
        values = self.several(node.arguments[1:])
        types = tuple(_widened(value.type) for value in values)
        if self.declared.final:
            trouble = check(node.name, format_, types)
            if trouble:
                raise wrong(trouble, node.where)
        elif any(isinstance(type_, Nothing | Folded) for type_ in types):
            return _nothing()
        request: requests.Request = requests.Printf(format_, types)
        if node.name != "printf":
            request = requests.Cat(format_, types) if node.name == "cat" else requests.System(format_, types)
        self.ask(request, values)
        return _nothing()

    def _print(self, node: tree.Call) -> Value:
        argument = node.arguments[0]
        if isinstance(argument, tree.Map) and argument.key is None:
            top, divisor = (self._literal_number(node, at) if at < len(node.arguments) else 0 for at in (1, 2))
            if top < 0 or divisor < 0:
                raise wrong("print() takes no negative number", node.where)
            self.ask(requests.PrintMap(self._map(node).name, top, divisor or 1))
            return _nothing()
        if isinstance(argument, tree.Map) and len(node.arguments) > 1:
            raise wrong("Single-value (i.e. indexed) map print cannot take additional arguments.", node.where)
        if len(node.arguments) > 1:
            raise wrong(f"Non-map print() only takes 1 argument, {len(node.arguments)} found", node.where)
        value = self._without_folded(self.read(self.value(argument)))
        if isinstance(value.type, Folded):
            what = "cannot print the value of individual keys. You must print the whole map."
            raise wrong(f"Map type {spelled(value.type)} {what}", node.where)
        if isinstance(value.type, Nothing):
            if self.declared.final:
                raise wrong("none type passed to print() is not printable", node.where)
            return _nothing()
        self.ask(requests.PrintValue((value.type,)), (value,))
        return _nothing()

    def _time(self, node: tree.Call) -> Value:
        format_ = self._literal_text(node, 0) if node.arguments else b"%H:%M:%S\n"
        self.ask(requests.ShowTime(as_typed(format_)))
        return _nothing()

    def _exit(self, node: tree.Call) -> Value:
        status: Value = self._words(node)[0] if node.arguments else Word(INT64, Constant(0))
        self.ask(requests.Exit((INT64,)), (status,))
        self.emit(Return())
        return _nothing()

    def _join(self, node: tree.Call) -> Value:
        """Ask for the texts that an array of pointers names, up to a null pointer."""
        found = self.read(self.value(node.arguments[0]))
        if not isinstance(found, Word) or not (is_integer(found.type) or isinstance(found.type, Pointer)):
            raise wrong(f"join() only supports int or pointer arguments ({spelled(found.type)} provided)", node.where)
        between = as_typed(self._literal_text(node, 1)) if len(node.arguments) > 1 else " "
        base = self.kept(found)
        assert isinstance(base, Word)
        count = self.variable()
        self.emit(Assign(count, Constant(0)))
        pointers = [self.variable() for _ in range(MOST_JOINED)]
        inner: tuple[Statement, ...] = ()
        for at, pointer in reversed([*enumerate(pointers)]):
            load = Assign(pointer, Load(added(base.expr, WORD * at), WORD, signed=False))
            inner = (load, If(pointer, (Assign(count, Constant(at + 1)), *inner)))
        self.emit(*inner)
        texts = tuple(Data(Text(JOINED_SIZE), StringLoad(each, JOINED_SIZE, False, False)) for each in pointers)
        parts: tuple[Type, ...] = (INT64, *(Text(JOINED_SIZE) for _ in pointers))
        self.ask(requests.Join(between, parts), (Word(INT64, count), *texts))
        return _nothing()

    # texts and bytes

    def _of_parameter(self, node: tree.Call) -> bytes | None:
        """Return the text of `str($1)` and `str($1 + 2)`; None of anything else."""
        argument, skipped = node.arguments[0], 0
        if isinstance(argument, tree.Binary) and argument.op == "+":
            sides = (argument.left, argument.right)
            parameter = next((each for each in sides if isinstance(each, tree.Parameter)), None)
            if parameter is None:
                return None
            other = sides[1] if sides[0] is parameter else sides[0]
            skipped = other.value if isinstance(other, tree.Number) else -1
        elif isinstance(argument, tree.Parameter):
            parameter = argument
        else:
            used = any(isinstance(each, tree.Parameter) for each in tree.nodes(argument))
            if used and not isinstance(argument, tree.Cast):
                message = "str() only accepts positional parameters directly or with a single constant offset added"
                raise wrong(message, node.where)
            return None
        given = self.declared.parameters
        if parameter.number == 0:
            raise wrong("$# is a number", parameter.where)
        whole = given[parameter.number - 1] if parameter.number <= len(given) else ""
        data = whole.encode("utf-8", "surrogateescape")
        if not 0 <= skipped <= len(data):
            what = "only addition of a single constant less or equal to the length of "
            raise wrong(f"{what}${parameter.number} (which is {len(data)}) is allowed inside str()", argument.where)
        return data[skipped:]

    def _str(self, node: tree.Call) -> Value:
        most = self.declared.settings.max_strlen
        size, length = most, None
        if len(node.arguments) > 1:
            given = self.value(node.arguments[1])
            word = self.integer(given, node.arguments[1].where)
            if word.literal and isinstance(word.expr, Constant):
                if word.expr.value >> 63:
                    raise wrong("str() cannot use negative length", node.where)
                size = min(word.expr.value, most)
            else:
                length = self.kept(word)
        found = self._of_parameter(node)
        if found is not None:
            kept = found[: max(size - 1, 0)]
            return text(kept) if length is None else self._cut_text(Data(Text(len(kept) + 1), text(kept).data), length)
        value = self.value(node.arguments[0])
        if isinstance(value, Memory) and isinstance(value.type, Array):
            return self.read(value)
        pointer = self.read(value)
        if isinstance(pointer.type, Nothing) and not self.declared.final:
            return Data(Text(size), Literal.text(b"", bytes_of(Text(size))))
        if not isinstance(pointer, Word) or not (is_integer(pointer.type) or isinstance(pointer.type, Pointer)):
            message = f"str() expects an integer or a pointer type as first argument ({spelled(pointer.type)} provided)"
            raise wrong(message, node.where)
        if size < 2:
            return text(b"")
        if length is None:
            return Data(Text(size), StringLoad(pointer.expr, size - 1, mapped=False, whole=False))
        assert isinstance(length, Word)
        least = fold.choose(length.expr, binary(Op.SUB, length.expr, Constant(1)), Constant(0))
        buffer = self.buffer(bytes_of(Text(size)))
        self.emit(Copy(buffer, BytesLoad(pointer.expr, size - 1, length=least, text=True)))
        return Data(Text(size), buffer)

    def _cut_text(self, value: Data, length: Value) -> Data:
        assert isinstance(length, Word)
        buffer = self.buffer(bytes_of(value.type))
        self.fill(buffer, value, value.type)
        self.emit(Cut(buffer, fold.choose(length.expr, binary(Op.SUB, length.expr, Constant(1)), Constant(0))))
        return Data(value.type, buffer)

    def _buf(self, node: tree.Call) -> Value:
        most = self.declared.settings.max_strlen - 4
        value = self.value(node.arguments[0])
        if isinstance(value, Word) and isinstance(value.type, Nothing) and not self.declared.final:
            return Data(Blob(most), Literal(bytes(bytes_of(Blob(most)))))
        size: int | None = None
        length: Expr | None = None
        if len(node.arguments) > 1:
            value = self.kept(value)
            word = self.integer(self.value(node.arguments[1]), node.arguments[1].where)
            if word.literal and isinstance(word.expr, Constant):
                if word.expr.value >> 63:
                    raise wrong("buf cannot use negative length", node.where)
                size = min(word.expr.value, most)
            else:
                kept = self.kept(word)
                assert isinstance(kept, Word)
                size, length = most, kept.expr
        elif isinstance(value.type, Array):
            size = min((value.type.count or 0) * _element_size(value.type), most)
        else:
            message = f"buf() expects a length argument for non-array type {spelled(value.type)}"
            raise wrong(message, node.where)
        type_ = Blob(size)
        buffer = self.buffer(bytes_of(type_))
        taken = Constant(size) if length is None else _least(length, size)
        self.emit(Copy(Slice(buffer.buffer, 0, WORD), taken))
        if size:
            self._take_bytes(Slice(buffer.buffer, WORD, buffer.size - WORD), value, size, length, node)
        return Data(type_, buffer)

    def _take_bytes(self, into: Slice, value: Value, size: int, length: Expr | None, node: tree.Call) -> None:
        """Emit what fills the bytes of a buffer."""
        if isinstance(value, Memory) and isinstance(value.type, Array):
            self.emit(Copy(into, BytesLoad(value.address, size, value.mapped, length)))
            return
        found = self.read(value)
        if isinstance(found, Word) and (is_integer(found.type) or isinstance(found.type, Pointer)):
            self.emit(Copy(into, BytesLoad(found.expr, size, length=length)))
        elif isinstance(found.type, Text | Array):
            self.fill(into, found, found.type)
            if length is not None or size % WORD:
                self.emit(Cut(into, Constant(size) if length is None else length))
        else:
            message = f"buf() expects an integer, string, or array argument but saw {spelled(found.type)}"
            raise wrong(message, node.where)

    def _strncmp(self, node: tree.Call) -> Value:
        most = self._literal_number(node, 2)
        if most < 0:
            raise wrong("strncmp: invalid size value", node.arguments[2].where)
        left, right = self._texts(node)
        return Word(UINT64, fold.negation(same_text(left, right, most)))

    def _strcontains(self, node: tree.Call) -> Value:
        return Word(INT64, contains_text(*self._texts(node)))

    def _texts(self, node: tree.Call) -> tuple[Slice | Literal, Slice | Literal]:
        found = []
        for value, argument in zip(self.several(node.arguments[:2]), node.arguments, strict=False):
            if not isinstance(value.type, Text):
                if self.declared.final or not isinstance(value.type, Nothing):
                    message = f"{node.name}() expects string arguments ({spelled(value.type)} provided)"
                    raise wrong(message, argument.where)
                value = text(b"")
            found.append(self.bytes(value))
        return found[0], found[1]

    # numbers and addresses

    def _ksym(self, node: tree.Call) -> Value:
        found = self.read(self.value(node.arguments[0]))
        if not isinstance(found, Word) or not (is_integer(found.type) or isinstance(found.type, Pointer)):
            raise wrong(f"{node.name}() expects an integer or pointer argument", node.where)
        if node.name == "ksym":
            return Word(Symbol(False), found.expr)
        pid = self.integer(self.builtin("pid", node.where), node.where)
        return self.user_symbol(found.expr, pid.expr)

    def _kaddr(self, node: tree.Call) -> Value:
        name = as_typed(self._literal_text(node, 0))
        address = self.declared.kernel.symbol(name)
        if address is None:
            raise wrong(f"Failed to resolve kernel symbol: {name}", node.arguments[0].where)
        return Word(UINT64, fold.constant(address), mapped=True)

    def _percpu_kaddr(self, node: tree.Call) -> Value:
        found = self._kaddr(node)
        assert isinstance(found, Word) and isinstance(found.expr, Constant)
        cpu = self.integer(self.value(node.arguments[1]), node.where).expr if len(node.arguments) > 1 else None
        address = self.site.hit.per_cpu(found.expr.value, cpu)
        if isinstance(address, Missing):
            raise wrong(address.message, node.where, address.hint)
        return Word(UINT64, address)

    def _reg(self, node: tree.Call) -> Value:
        found = self.site.hit.register(as_typed(self._literal_text(node, 0)))
        if isinstance(found, Missing):
            raise wrong(found.message, node.where, found.hint)
        return Word(UINT64, found.expr)

    def _in_space(self, node: tree.Call) -> Value:
        """Return an address of the kernel or of the program, as the name says; 0, which reads as nothing, for another.

        The kernel's half of the addresses is the upper one on every ISA.
        """
        found = self.read(self.value(node.arguments[0]))
        if not isinstance(found, Word) or not (is_integer(found.type) or isinstance(found.type, Pointer)):
            if isinstance(found.type, Nothing) and not self.declared.final:
                return found
            raise wrong(f"{node.name}() expects an integer or pointer argument", node.where)
        kept = self.kept(found)
        assert isinstance(kept, Word)
        upper = binary(Op.SHR, kept.expr, Constant(63))
        sides = (Constant(0), kept.expr) if node.name == "uptr" else (kept.expr, Constant(0))
        return replace(kept, expr=fold.choose(upper, *sides))

    def _stack_of(self, node: tree.Call) -> Value:
        return self.stack(node.name == "ustack", *self._mode_and_depth(node), node.where)

    def _mode_and_depth(self, node: tree.Call) -> tuple[str, int]:
        mode, depth = self.declared.settings.stack_mode, DEPTH
        for at, argument in enumerate(node.arguments):
            if isinstance(argument, tree.Name) and argument.name in STACK_MODES and at == 0:
                mode = argument.name
            else:
                depth = self._literal_number(node, at)
        if not 0 < depth <= _DEEPEST_STACK:
            limit = f"limit shouldn't exceed {_DEEPEST_STACK}, {depth} given"
            raise wrong(f"{node.name}([int limit]): {limit}", node.where)
        return mode, depth

    def _nsecs(self, node: tree.Call) -> Value:
        argument = node.arguments[0] if node.arguments else None
        if argument is None:
            return self.builtin("nsecs", node.where)
        if not isinstance(argument, tree.Name) or argument.name not in _CLOCKS:
            raise wrong(f"nsecs() takes one of {', '.join(_CLOCKS)}", argument.where)
        return self.builtin("nsecs" if argument.name == "boot" else f"nsecs {argument.name}", node.where)

    def _strftime(self, node: tree.Call) -> Value:
        format_ = as_typed(self._literal_text(node, 0))
        argument = node.arguments[1]
        clock = ""
        if isinstance(argument, tree.Call) and argument.name == "nsecs" and argument.arguments:
            given = argument.arguments[0]
            clock = given.name if isinstance(given, tree.Name) else ""
        if clock == "monotonic":
            raise wrong("strftime() can not take a monotonic timestamp", node.where)
        word = self.integer(self.value(argument), argument.where)
        return Word(Time(format_, boot=not clock.endswith("tai")), word.expr)

    def _ntop(self, node: tree.Call) -> Value:
        argument = node.arguments[-1]
        family: Expr | None = None
        if len(node.arguments) > 1:
            kept = self.kept(self.integer(self.value(node.arguments[0]), node.arguments[0].where))
            assert isinstance(kept, Word)
            family = kept.expr
        value = self.value(argument)
        low, high, size = self._address_words(value, argument, node)
        if family is None:
            family = Constant(self._family("AF_INET6" if size == 16 else "AF_INET", node.where))
        buffer = self.buffer(bytes_of(Internet()))
        for at, word in enumerate((family, low, high)):
            self.emit(Copy(Slice(buffer.buffer, WORD * at, WORD), word))
        return Data(Internet(), buffer)

    def _family(self, name: str, where: Place) -> int:
        found = self.declared.kernel.constant(name)
        value = found[0] if isinstance(found, tuple) else found
        if value is None:
            raise wrong(f"the kernel's {name} is not known", where)
        return value

    def _address_words(self, value: Value, argument: tree.Expression, node: tree.Call) -> tuple[Expr, Expr, int]:
        """Return the two words of an address of the internet, and its bytes."""
        if isinstance(value.type, Array):
            size = value.type.count * _element_size(value.type)
            if size not in (4, 16):
                raise wrong("ntop() argument must be 4 or 16 bytes in size", argument.where)
            width = min(size, WORD)
            words: list[Expr]
            if isinstance(value, Memory):
                words = [Load(added(value.address, at), width, False, value.mapped) for at in range(0, size, WORD)]
            else:
                inside = value if isinstance(value, Inside) else self._inside(value)
                words = [Part(inside.buffer, inside.offset + at, width) for at in range(0, size, WORD)]
            return words[0], words[1] if len(words) > 1 else Constant(0), size
        found = self.read(value)
        if isinstance(found, Word) and (is_integer(found.type) or isinstance(found.type, Nothing)):
            return fold.convert(found.expr, 32, False), Constant(0), 4
        raise wrong(f"ntop() expects an integer or array argument, got {spelled(found.type)}", argument.where)

    def _pton(self, node: tree.Call) -> Value:
        given = as_typed(self._literal_text(node, 0))
        try:
            data = ipaddress.ip_address(given).packed
        except ValueError:
            raise wrong(f"pton() expects a valid IPv4/IPv6 address, got {given}", node.arguments[0].where) from None
        buffer = self.buffer(-(-len(data) // WORD) * WORD)
        self.emit(Copy(buffer, Literal.text(data, buffer.size)))
        return Data(Array(UINT8, len(data)), buffer)

    def _macaddr(self, node: tree.Call) -> Value:
        value = self.value(node.arguments[0])
        if isinstance(value.type, Array) and value.type.count * _element_size(value.type) == 6:
            if isinstance(value, Memory):
                parts: list[tuple[Expr, int]] = [
                    (Load(added(value.address, at), size, False, value.mapped), size) for at, size in ((0, 4), (4, 2))
                ]
            else:
                inside = value if isinstance(value, Inside) else self._inside(value)
                parts = [(Part(inside.buffer, inside.offset + at, size), size) for at, size in ((0, 4), (4, 2))]
            return Word(Ethernet(), packed(parts))
        raise wrong(f"macaddr() argument must be 6 bytes in size, not '{spelled(value.type)}'", node.where)

    def _bswap(self, node: tree.Call) -> Value:
        (word,) = self._words(node)
        kept = self.kept(word)
        assert isinstance(kept, Word)
        size = word.type.size if isinstance(word.type, Integer | Enum) else WORD
        swapped: Expr = Constant(0)
        for at in range(size):
            byte = binary(Op.AND, binary(Op.SHR, kept.expr, Constant(8 * at)), Constant(0xFF))
            moved = binary(Op.SHL, byte, Constant(8 * (size - 1 - at)))
            swapped = moved if at == 0 else binary(Op.OR, swapped, moved)
        return Word(integer(size, False), swapped)

    def _strerror(self, node: tree.Call) -> Value:
        return Word(ErrorText(), self._words(node)[0].expr)

    def _cgroup_path(self, node: tree.Call) -> Value:
        word = self.integer(self.value(node.arguments[0]), node.arguments[0].where)
        return Word(ControlGroup(), word.expr)


def _is_carried_out(node: tree.Call) -> bool:
    """Return whether the host does it while a script runs; `print` of a value is a record as `printf` is."""
    if node.name != "print" or not node.arguments:
        return node.name in _CARRIED_OUT
    return isinstance(node.arguments[0], tree.Map) and node.arguments[0].key is None


def _nothing() -> Word:
    return Word(NOTHING, Constant(0))


def _widened(type_: Type) -> Type:
    """Return the type of a value given to a format: numbers have 64 bits."""
    return integer(WORD, type_.signed) if isinstance(type_, Integer) else type_


def _least(word: Expr, most: int) -> Expr:
    return fold.choose(binary(Op.LT, word, Constant(most)), word, Constant(most))


def _element_size(type_: Array) -> int:
    return getattr(type_.element, "size", WORD)


FUNCTIONS: Mapping[str, tuple[int, int, Callable[[Calls, tree.Call], Value]]] = {
    "buf": (1, 2, Calls._buf),
    "bswap": (1, 1, Calls._bswap),
    "cat": (1, 128, Calls._formatted),
    "cgroup_path": (1, 2, Calls._cgroup_path),
    "clear": (1, 1, Calls._clear),
    "delete": (1, 2, Calls._delete),
    "exit": (0, 1, Calls._exit),
    "has_key": (2, 2, Calls._has_key),
    "join": (1, 2, Calls._join),
    "kaddr": (1, 1, Calls._kaddr),
    "kptr": (1, 1, Calls._in_space),
    "kstack": (0, 2, Calls._stack_of),
    "ksym": (1, 1, Calls._ksym),
    "len": (1, 1, Calls._len),
    "macaddr": (1, 1, Calls._macaddr),
    "nsecs": (0, 1, Calls._nsecs),
    "ntop": (1, 2, Calls._ntop),
    "percpu_kaddr": (1, 2, Calls._percpu_kaddr),
    "print": (1, 3, Calls._print),
    "printf": (1, 128, Calls._formatted),
    "pton": (1, 1, Calls._pton),
    "reg": (1, 1, Calls._reg),
    "str": (1, 2, Calls._str),
    "strcontains": (2, 2, Calls._strcontains),
    "strerror": (1, 1, Calls._strerror),
    "strftime": (2, 2, Calls._strftime),
    "strncmp": (3, 3, Calls._strncmp),
    "system": (1, 128, Calls._formatted),
    "time": (0, 1, Calls._time),
    "uptr": (1, 1, Calls._in_space),
    "ustack": (0, 2, Calls._stack_of),
    "usym": (1, 1, Calls._ksym),
    "zero": (1, 1, Calls._zero),
}
"""By name: how many arguments a function takes, at least and at most, and what compiles it."""
