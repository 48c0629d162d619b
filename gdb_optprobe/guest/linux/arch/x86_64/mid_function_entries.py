"""Mid-function entries: where execution may enter a function other than at its start. Proven over all kernel text.

    text ──────────► every rel32 of a branch or call, every `lea` and every immediate that is an address of code
    rodata, data ──► every aligned word that is one
                       └─► those strictly inside a function ─► confirmed by decoding ─► MidFunctionEntries

Candidates are bytes that look so, at whatever offset, so none is missed; decoding only throws out those that are no
operand of any instruction, in functions that decode from end to end. An address that a function takes of itself counts
(`pushq $1f; iretq`, a computed goto). A word that is 4 bytes long is relative in all of the kernel's tables; those that
lead into functions (jump labels, fixups) are read by text.py, as are branches too short to leave a function's vicinity.
Code outside of the image knows functions by their symbols: modules where they start, BPF's trampolines and the tracer's
also right behind the tracer's site, which no branch covers together with anything else. Init text is gone.

The code is read in each session, at the first probe that needs it; results are cached by the hash of these bytes, as
they were in the first boot (moved_text.py). They depend on what the kernel patched at boot, by the CPU's features.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct, unpack_from

from gdb_optprobe.budget import Budget
from gdb_optprobe.guest.cache import Shelf
from gdb_optprobe.guest.linux.arch.x86_64.moved_text import in_earlier_boot
from gdb_optprobe.guest.linux.core_text import LARGEST, is_boundary
from gdb_optprobe.guest.linux.kernel import Kernel, Symbols
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.text import Jump
from gdb_optprobe.isa.base import Flow, Insn
from gdb_optprobe.isa.x86_64.decoder import shape

FILLER = 0xCC
FILLING = b"\xcc" * 1024
POINTER = "pointer"
KINDS = (Flow.JUMP.value, Flow.BRANCH.value, Flow.CALL.value, POINTER)
HEADER = Struct("<II")  # a number of the format and of the rows
FORMAT = 2
# A limit (budget.py): of so many bytes of text one may be a candidate, and some beside. Kernels have one of 6,000.
BYTES_EACH, LEAST = 64, 1 << 12
FINDER = b"gdb_optprobe: landings, 2\n"
"""Renumbered when others are found in the same bytes."""
END = 1 << 64
WORD, LOW_BITS = 8, 24
"""Bytes of a word, and how many of its bits differ in most addresses of one text."""
REACH = 1 << 31
"""How far from the text's start anything of the image lies."""

Decode = Callable[[bytes, int], list[Insn]]

# The opcode right before a 32-bit displacement: call, jmp; jcc; xbegin.
_BRANCHES = (rb"[\xe8\xe9]", rb"\x0f[\x80-\x8f]", rb"\xc7\xf8")
_LEA = rb"\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]"
# Opcodes with a 32-bit immediate: push, add, sub, cmp with rax; and with ModRM: mov, the arithmetic group; lea.
_PLAIN = frozenset(b"\x68\x05\x2d\x3d")
_WITH_MODRM = frozenset(b"\xc7\x81")
_WITH_ADDRESS = _WITH_MODRM | frozenset(b"\x8d")
_ABSOLUTE_LEA = 0x8D


class Functions:
    """The functions of the `text` at `start`, ascending, by their symbols; filler behind one is no part of it."""

    def __init__(self, symbols: Symbols, start: int, text: bytes) -> None:
        end = start + len(text)
        self.starts, self.ends = array("Q"), array("Q")
        entries: set[int] = set()
        at = start
        while at < end and (symbol := symbols.at(at)) is not None and symbol.size:
            following = at - symbol.offset + symbol.size
            bounds = symbols.function_bounds(at)
            if bounds is not None and not is_boundary(symbol.name):
                entries.add(bounds[0])
                if bounds[1] - bounds[0] <= LARGEST:
                    filler = text.find(FILLING, bounds[0] - start, bounds[1] - start)
                    self.starts.append(bounds[0])
                    self.ends.append(bounds[1] if filler < 0 else start + filler)
            at = following
        self.entries = frozenset(entries)

    def index(self, address: int) -> int:
        """Return which function covers `address`; -1 where none does."""
        found = bisect_right(self.starts, address) - 1
        return found if found >= 0 and address < self.ends[found] else -1


@dataclass(frozen=True, slots=True)
class MidFunctionEntries:
    """Entries into functions: three columns, ascending by target. Kinds are indices of `KINDS`."""

    targets: array[int]
    sources: array[int]
    kinds: bytes

    @classmethod
    def of(cls, jumps: Iterable[Jump]) -> MidFunctionEntries:
        rows = sorted({(jump.target, jump.source, KINDS.index(jump.kind)) for jump in jumps})
        return cls(array("Q", [r[0] for r in rows]), array("Q", [r[1] for r in rows]), bytes(r[2] for r in rows))

    def __len__(self) -> int:
        return len(self.targets)

    def joined(self, others: Sequence[Jump]) -> MidFunctionEntries:
        """Return these entries and `others`."""
        return self.of([*self.within(0, END), *others]) if others else self

    def within(self, start: int, end: int) -> list[Jump]:
        """Return the entries strictly inside [start, end)."""
        first = bisect_right(self.targets, start)
        return [
            Jump(self.sources[row], self.targets[row], KINDS[self.kinds[row]])
            for row in range(first, bisect_left(self.targets, end, first))
        ]

    def pack(self, base: int) -> bytes:
        """Encode for the cache, relative to `base`, which KASLR moves."""
        columns = [array("q", [address - base for address in column]) for column in (self.targets, self.sources)]
        return HEADER.pack(FORMAT, len(self)) + b"".join(column.tobytes() for column in columns) + self.kinds

    @classmethod
    def unpack(cls, data: bytes, base: int) -> MidFunctionEntries | None:
        """Decode what `pack` made; None where it is of another format or damaged."""
        if len(data) < HEADER.size:
            return None
        number, rows = HEADER.unpack_from(data)
        if number != FORMAT or len(data) != HEADER.size + 17 * rows:
            return None
        first, second = HEADER.size + 8 * rows, HEADER.size + 16 * rows
        targets, sources = array("q", data[HEADER.size : first]), array("q", data[first:second])
        if any(not -REACH < offset < REACH for column in (targets, sources) for offset in column):
            return None
        if list(targets) != sorted(targets) or max(data[second:], default=0) >= len(KINDS):
            return None
        return cls(_moved(targets, base), _moved(sources, base), data[second:])


def _moved(offsets: array[int], base: int) -> array[int]:
    return array("Q", [offset + base for offset in offsets])


@dataclass(frozen=True, slots=True)
class Found:
    """The entries of a text.
    pristine: no branch in a function leads to code outside of all functions: the text is as the kernel has made it.
    alone: no branch leads to where such code may be written either, so our detours there make no difference.
    """

    landings: MidFunctionEntries
    pristine: bool
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """Four bytes `at` that may be an operand that leads to `target`. relative: to the end of these bytes."""

    at: int
    target: int
    relative: bool


def find(text: bytes, base: int, functions: Functions, decode: Decode, words: Iterable[tuple[int, bytes]]) -> Found:
    """Return all entries in the `text` at `base`. words: (address, data) of memory that may hold pointers to it."""
    inside: list[Candidate] = []
    beyond: list[Candidate] = []
    idle: list[Candidate] = []
    budget = Budget(len(text) // BYTES_EACH + LEAST, "the kernel's text", "places that may lead into a function")
    for candidate in _relative(text, base, functions):
        target = functions.index(candidate.target)
        if target < 0:
            budget.spend()
            (idle if text[candidate.target - base] == FILLER else beyond).append(candidate)
        elif target != functions.index(candidate.at) or _is_lea(text, candidate.at - base):
            budget.spend()
            inside.append(candidate)
    for candidate in _absolute(text, base, functions):
        budget.spend()
        inside.append(candidate)
    # One detour may lead to another; only a branch out of a function shows that code outside of functions is in use.
    beyond, idle = ([each for each in those if functions.index(each.at) >= 0] for those in (beyond, idle))
    foreign = [jump for jump in _confirmed(beyond, text, base, functions, decode) if jump.kind != POINTER]
    jumps = _confirmed(inside, text, base, functions, decode)
    if not foreign:
        # Code outside of functions is our detours: the text that they displace has the same targets.
        jumps = [jump for jump in jumps if functions.index(jump.source) >= 0]
    jumps += _words(words, functions)
    alone = not foreign and not _confirmed(idle, text, base, functions, decode)
    return Found(MidFunctionEntries.of(jumps), not foreign, alone)


def _relative(text: bytes, base: int, functions: Functions) -> Iterator[Candidate]:
    """Yield what looks like a relative operand that leads into the text, but to no function's start."""
    size = len(text)
    # A displacement's highest byte: what reaches all of the text, forwards and backwards.
    high = b"".join(re.escape(bytes([top & 0xFF])) for top in range(-(size >> 24) - 1, (size >> 24) + 1))
    entries = functions.entries
    for opcode in (*_BRANCHES, _LEA):
        for match in re.finditer(opcode + rb"(?=...[" + high + rb"])", text, re.DOTALL):
            at = match.end()
            offset = at + 4 + unpack_from("<i", text, at)[0]
            if 0 <= offset < size and base + offset not in entries:
                yield Candidate(base + at, base + offset, relative=True)


def _absolute(text: bytes, base: int, functions: Functions) -> Iterator[Candidate]:
    """Yield what looks like an operand that is an address inside a function."""
    low, last = base & 0xFFFF_FFFF, base + len(text) - 1 & 0xFFFF_FFFF
    high = b"".join(re.escape(bytes([top])) for top in range(low >> 24, (last >> 24) + 1))
    for match in re.finditer(rb"(?=...[" + high + rb"])", text, re.DOTALL):
        at = match.start()
        value = unpack_from("<I", text, at)[0]
        if low <= value <= last and _may_hold_address(text, at):
            target = base + value - low
            if target not in functions.entries and functions.index(target) >= 0:
                yield Candidate(base + at, target, relative=False)


def _may_hold_address(text: bytes, at: int) -> bool:
    """Return whether one of the opcodes above can precede an operand `at`, or it is the low half of a 64-bit one."""
    if text[at - 1] in _PLAIN or text[at - 2] in _WITH_ADDRESS or text[at - 3] in _WITH_ADDRESS:
        return True
    if text[at + 4 : at + 8] == b"\xff\xff\xff\xff":
        return True
    return text[at - 4] in _WITH_MODRM or text[at - 6] in _WITH_MODRM or text[at - 7] in _WITH_MODRM


def _is_lea(text: bytes, at: int) -> bool:
    return text[at - 2] == _ABSOLUTE_LEA and text[at - 1] & 0xC7 == 0x05


def _words(words: Iterable[tuple[int, bytes]], functions: Functions) -> Iterator[Jump]:
    """Yield the pointers in data that lead into functions."""
    if not functions.starts:
        return
    first, last = functions.starts[0], functions.ends[-1]
    for address, data in words:
        for row, value in enumerate(array("Q", data[: len(data) & ~7])):
            if first <= value < last and value not in functions.entries and functions.index(value) >= 0:
                yield Jump(address + 8 * row, value, POINTER)


# --- of a kernel -----------------------------------------------------------------------------------------------------


AtRest = Callable[[bytes, int], bytes]
"""Removes from text at an address what the kernel rewrites while it runs: text_at_rest.py."""


@dataclass(frozen=True, slots=True)
class KernelEntries:
    """The entries of a kernel's text.
    key: a hash of the text and the symbols, the same in each boot; "" where the entries depend on more, but `pointed`.
    pointed: those that pointers in data lead to, ascending: some data have other ones in each boot.
    """

    landings: MidFunctionEntries
    key: str
    pointed: Sequence[int]


def of_kernel(
    kernel: Kernel,
    decode: Decode,
    originals: OriginalText,
    shelf: Shelf | None,
    say: Callable[[str], None],
    at_rest: AtRest = lambda text, base: text,
    read: Callable[[int, int], bytes] | None = None,
) -> KernelEntries:
    """Return the mid-function entries of a kernel's text. Raises OptprobeError.
    shelf: caches what an earlier session found in the same text, for a kernel with these symbols.
    read: returns original text that may have been read before.
    """
    start, end = kernel.range("_stext", "_etext")
    originals.check()
    text = at_rest((read or originals.read)(start, end), start)
    alone, words = _functions_alone(kernel, start, text, _inside(kernel, start, end))
    key = ""
    if shelf is not None:
        earlier, base = in_earlier_boot(alone, start, kernel, shelf, decode, say)
        key = _key(shelf.key, base, earlier)
    name = f"landings-{key}"
    kept = shelf.load(name) if shelf is not None else None
    known = MidFunctionEntries.unpack(kept, start) if kept is not None else None
    if known is None:
        say("finding out what leads into the kernel's functions, once for each kernel")
        found = find(text, start, Functions(kernel.symbols, start, text), decode, ())
        known = found.landings
        if not found.alone:
            key = ""  # they depend on what is behind functions, too
        elif shelf is not None:
            shelf.store(name, known.pack(start))
    pointers = list(_pointers(kernel, words))
    return KernelEntries(known.joined(pointers), key, sorted(jump.target for jump in pointers))


def _pointers(kernel: Kernel, words: Iterable[tuple[int, int]]) -> Iterator[Jump]:
    """Yield those of `words` that lead into functions."""
    for address, value in words:
        bounds = kernel.symbols.function_bounds(value)
        located = kernel.symbols.at(value)
        if bounds is not None and located is not None and not is_boundary(located.name):
            yield Jump(address, value, POINTER)


def _functions_alone(
    kernel: Kernel, start: int, text: bytes, words: Sequence[tuple[int, int]]
) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the text and the words without what is behind functions, from where padding begins (see `Functions`).
    Our detours and their data are there; for `Found.alone` they make no difference.
    """
    found, spans = bytearray(text), []
    at = text.find(FILLING)
    while at >= 0:
        located = kernel.symbols.at(start + at)
        end = at - located.offset + located.size if located is not None else 0
        end = min(max(end, at + len(FILLING)), len(text))
        found[at:end] = bytes([FILLER]) * (end - at)
        spans.append((start + at, start + end))
        at = text.find(FILLING, end)
    # Spans ascend and do not overlap: only the last one that begins at an address, or before it, may hold it.
    firsts = [first for first, _ in spans]
    behind = ((row, bisect_right(firsts, row[1])) for row in words)
    return bytes(found), [row for row, count in behind if not count or row[1] >= spans[count - 1][1]]


def _key(symbols: str, start: int, text: bytes) -> str:
    """Return the hash of all input: symbols, by their key, and the text at `start`."""
    found = sha256(FINDER)
    found.update(f"{symbols}\n{start:x} {len(text):x}\n".encode())
    found.update(text)
    return found.hexdigest()


def _inside(kernel: Kernel, start: int, end: int) -> list[tuple[int, int]]:
    """Return (address, value) of each word in rodata and data that leads into the text but to no symbol."""
    names: dict[int, bool] = {}
    found: list[tuple[int, int]] = []
    for address, data in _data(kernel):
        for at, value in sorted(_words_between(data, start, end)):
            if value not in names:
                located = kernel.symbols.at(value)
                names[value] = located is not None and not located.offset
            if not names[value]:
                found.append((address + at, value))
    return found


def _words_between(data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the offsets of aligned words that are from `start` to before `end`, and the words: by their high bytes."""
    for high in range(start >> LOW_BITS, (end - 1 >> LOW_BITS) + 1):
        part = high.to_bytes(WORD - LOW_BITS // 8, "little")
        at = data.find(part)
        while at >= 0:
            word = at - LOW_BITS // 8
            if word >= 0 and not word % WORD:
                value: int = unpack_from("<Q", data, word)[0]
                if start <= value < end:
                    yield word, value
            at = data.find(part, at + 1)


NO_POINTERS = (
    ("__start_BTF", "__stop_BTF"),
    ("__start_orc_unwind_ip", "__stop_orc_unwind_ip"),
    ("__start_orc_unwind", "__stop_orc_unwind"),
)
"""Tables in rodata that have none to code: the largest ones."""


def _data(kernel: Kernel) -> Iterator[tuple[int, bytes]]:
    """Yield memory that the linker may have filled with pointers, without the first task's stack: it has return
    addresses.
    """
    start, end = kernel.range("_sdata", "_edata")
    stack = kernel.symbols.address("init_stack")
    found = kernel.symbols.at(stack) if stack is not None and start <= stack < end else None
    left_out = (stack, stack + found.size) if stack is not None and found is not None else (end, end)
    constants, stop = kernel.range("__start_rodata", "__end_rodata")
    for first, last in sorted(kernel.range(*names) for names in NO_POINTERS):
        if constants <= first < last <= stop:
            yield constants, kernel.read(constants, first)
            constants = last + -last % 8
    for first, last in ((constants, stop), (start, left_out[0]), (left_out[1], end)):
        yield first, kernel.read(first, last)


# --- confirming ------------------------------------------------------------------------------------------------------


def _confirmed(
    candidates: Iterable[Candidate], text: bytes, base: int, functions: Functions, decode: Decode
) -> list[Jump]:
    """Return the candidates that are operands of instructions. Those outside of functions, or in functions that do not
    decode, are kept.
    """
    by_function: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_function[functions.index(candidate.at)].append(candidate)
    found = [_unclear(candidate) for candidate in by_function.pop(-1, ())]
    for index, those in by_function.items():
        start, end = functions.starts[index], functions.ends[index]
        insns = decode(text[start - base : end - base], start)
        if not insns or insns[-1].end != end or foreign(insns) is not None:
            found += map(_unclear, those)
            continue
        addresses = [insn.address for insn in insns]
        for candidate in those:
            jump = _operand_of(insns[bisect_right(addresses, candidate.at) - 1], candidate)
            if jump is not None:
                found.append(jump)
    return found


def _unclear(candidate: Candidate) -> Jump:
    return Jump(candidate.at - 1, candidate.target, Flow.JUMP.value if candidate.relative else POINTER)


def _operand_of(insn: Insn, candidate: Candidate) -> Jump | None:
    """Return the jump that `insn` makes if these bytes are its operand."""
    offset = candidate.at - insn.address
    if insn.target is not None:
        own = candidate.relative and insn.target == candidate.target and offset == insn.size - 4
        return Jump(insn.address, insn.target, insn.flow.value) if own else None
    if offset <= 0 or candidate.at + 4 > insn.end:
        return None
    parts = shape(insn.data)
    if candidate.relative:
        taken = offset == parts.disp and parts.is_rip_relative and parts.opcode == _ABSOLUTE_LEA
    elif offset == parts.imm:
        taken = parts.imm_size >= 4
    else:
        taken = offset == parts.disp and parts.disp_size == 4 and parts.opcode == _ABSOLUTE_LEA
        taken = taken and not parts.is_rip_relative
    return Jump(insn.address, candidate.target, POINTER) if taken else None


_RUNS_ON = (Flow.NEXT, Flow.BRANCH, Flow.CALL, Flow.INDIRECT_CALL)
"""What code runs on behind, a call when it has returned."""


def foreign(insns: Sequence[Insn], breakpoint: bytes = b"\xcc", listed: bool = True) -> int | None:
    """Return the address of the first breakpoint instruction that no compiler has put there; None where there is none.
    listed: whether the guest's own kprobes are known and excluded. What a breakpoint covers cannot be decoded, so the
    rest of the function is not to be trusted. Compilers put breakpoints behind code that does not fall through: where
    the guest's kprobes are not known, only those that a jump passes by are taken for the compiler's.
    """
    end = len(insns)
    while end and insns[end - 1].data == breakpoint:
        end -= 1
    if end and insns[0].data == breakpoint:
        return insns[0].address
    targets = frozenset(insn.target for insn in insns) if not listed else frozenset()

    def is_foreign(at: int) -> bool:
        before = insns[at - 1]
        if before.data == breakpoint:
            # Of several in a row the first tells.
            return False
        return before.flow in _RUNS_ON or not (listed or _is_passed_by(insns[at:], breakpoint, targets))

    found = (at for at in range(1, end) if insns[at].data == breakpoint and is_foreign(at))
    return next((insns[at].address for at in found), None)


def _is_passed_by(insns: Sequence[Insn], breakpoint: bytes, targets: Container[int | None]) -> bool:
    """Return whether the breakpoint that `insns` begin with is padding: more of it follows, then a jump's target."""
    for insn in insns[1:]:
        if insn.address in targets:
            return True
        if insn.data != breakpoint and not insn.text.startswith("nop"):
            return False
    return True
