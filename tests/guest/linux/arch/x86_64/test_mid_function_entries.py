"""What leads into functions, found in the bytes of a small text."""

from __future__ import annotations

import random
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.cache import Cache, Shelf
from gdb_optprobe.guest.linux.arch.x86_64 import mid_function_entries
from gdb_optprobe.guest.linux.arch.x86_64.mid_function_entries import Functions, MidFunctionEntries
from gdb_optprobe.guest.linux.arch.x86_64.text import KernelText
from gdb_optprobe.guest.linux.arch.x86_64.text_at_rest import Rewritten, at_rest
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.linux.kprobes import hashed
from gdb_optprobe.guest.linux.original_text import OriginalText
from gdb_optprobe.guest.text import Jump
from gdb_optprobe.isa.x86_64 import X86_64
from tests.detours.fakes import code
from tests.guest.linux.fake_kernel import Pages, kernel, symbols
from tests.steps import calls_in

TEXT = 0xFFFFFFFF81000000
SIZE = 0x400
ONE, TWO, FILLER = TEXT + 0x100, TEXT + 0x200, TEXT + 0x300
NAMES = {"_stext": TEXT, "one": ONE, "two": TWO, "d_filler": FILLER, "d__etext": TEXT + SIZE}
DATA = 0xFFFFFFFF82000000


def found(*listings: tuple[int, str], words: tuple[tuple[int, bytes], ...] = ()) -> mid_function_entries.Found:
    text = bytearray(b"\xcc" * SIZE)
    for at, listing in listings:
        data = code(listing)
        text[at - TEXT : at - TEXT + len(data)] = data
    functions = Functions(symbols(**NAMES), TEXT, bytes(text))
    return mid_function_entries.find(bytes(text), TEXT, functions, X86_64.decode, words)


def all_of(found: mid_function_entries.Found) -> list[Jump]:
    return found.landings.within(0, 2**64)


@pytest.mark.parametrize(
    ("listing", "kind"),
    [
        ("e9 04 01 00 00  jmp two+9", "jump"),
        ("e8 04 01 00 00  call two+9", "call"),
        ("0f 84 03 01 00 00  je two+9", "branch"),
        ("48 8d 05 02 01 00 00  lea two+9(%rip), %rax\n c3  ret", "pointer"),
        ("68 09 02 00 81  push $two+9\n c3  ret", "pointer"),
        ("48 c7 c0 09 02 00 81  mov $two+9, %rax\n c3  ret", "pointer"),
        ("48 c7 05 00 00 00 00 09 02 00 81  movq $two+9, 0(%rip)\n c3  ret", "pointer"),
        ("48 81 c0 09 02 00 81  add $two+9, %rax\n c3  ret", "pointer"),
        ("48 b8 09 02 00 81 ff ff ff ff  movabs $two+9, %rax\n c3  ret", "pointer"),
        ("48 8d 04 c5 09 02 00 81  lea two+9(,%rax,8), %rax\n c3  ret", "pointer"),
    ],
)
def test_what_leads_into_another_function(listing: str, kind: str) -> None:
    assert all_of(found((ONE, listing))) == [Jump(ONE, TWO + 9, kind)]


@pytest.mark.parametrize(
    "listing",
    [
        "e9 fb 00 00 00  jmp two",
        "e8 00 00 00 00  call one+5",
        "0f 84 10 00 00 00  je one+22",
        "48 8d 05 f9 00 00 00  lea two(%rip), %rax",
        "48 8b 05 02 01 00 00  mov two+9(%rip), %rax",
        "48 c7 c0 e9 04 01 00  mov $0x104e9, %rax",  # the bytes of a jump inside an immediate
    ],
)
def test_what_does_not(listing: str) -> None:
    assert all_of(found((ONE, listing))) == []


def test_an_address_that_a_function_takes_of_itself() -> None:
    (jump,) = all_of(found((ONE, "68 05 01 00 81  push $one+5\n 48 cf  iretq")))
    assert jump == Jump(ONE, ONE + 5, "pointer")


def test_pointers_in_data() -> None:
    words = ((DATA, pack("<QQQ", TWO, TWO + 3, FILLER + 3)),)
    assert all_of(found(words=words)) == [Jump(DATA + 8, TWO + 3, "pointer")]


def test_code_that_cannot_be_decoded_keeps_what_looks_like_a_jump() -> None:
    broken = "48 c7 c0 e9 04 01 00  mov $0x104e9, %rax"
    assert all_of(found((ONE, f"{broken}\n 00 00  add %al, (%rax)"))) == []
    (jump,) = all_of(found((ONE, "48 c7 c0 e9 04 01 00 00 00  mov, add\n 06  (bad)")))
    assert jump == Jump(ONE + 3, ONE + 8 + 0x104, "jump")


def test_a_breakpoint_of_somebody_makes_a_function_unclear() -> None:
    listing = "90  nop\n cc  int3\n 48 c7 c0 e9 04 01 00 00 c3  what is beneath it is not known"
    assert [jump.target for jump in all_of(found((ONE, listing)))] == [ONE + 10 + 0x104]


def test_detours_of_ours_count_for_nothing() -> None:
    there = found((FILLER, "e9 09 ff ff ff  jmp two+14"))
    assert there.pristine and all_of(there) == []


def test_a_detour_that_leads_to_another_one_is_no_patch_of_somebody_s() -> None:
    there = found((FILLER, "e9 09 ff ff ff  jmp two+14"), (FILLER + 0x20, "e9 db ff ff ff  jmp filler"))
    assert there.pristine and all_of(there) == []


def test_detours_of_somebody_else_count_and_nothing_is_kept() -> None:
    there = found((ONE, "e9 fb 01 00 00  jmp filler"), (FILLER, "e9 09 ff ff ff  jmp two+14"))
    assert not there.pristine
    assert all_of(there) == [Jump(FILLER, TWO + 14, "jump")]


def test_filler_behind_a_function_is_none_of_it() -> None:
    """Detours stand there."""
    text = code("c3  ret") + b"\xcc" * 0x400 + code("e9 00 00 00 00  jmp")
    functions = Functions(symbols(_stext=TEXT, last=TEXT, next=TEXT + len(text)), TEXT, text)
    assert (functions.index(TEXT), functions.index(TEXT + 1), functions.index(TEXT + 0x401)) == (0, -1, -1)


def test_within_is_strictly_inside() -> None:
    jumps = [Jump(1, 10, "jump"), Jump(2, 11, "call"), Jump(3, 11, "pointer"), Jump(4, 15, "branch")]
    table = MidFunctionEntries.of(reversed(jumps))
    assert table.within(10, 15) == jumps[1:3]
    assert table.within(9, 16) == jumps
    assert table.within(11, 15) == []


def test_kept_rows_move_with_the_kernel() -> None:
    table = MidFunctionEntries.of([Jump(TEXT + 7, TEXT + 0x99, "jump"), Jump(DATA, TEXT + 0x55, "pointer")])
    packed = table.pack(TEXT)
    assert MidFunctionEntries.unpack(packed, TEXT) == table
    moved = MidFunctionEntries.unpack(packed, TEXT + 0x20_0000)
    assert moved is not None
    assert moved.within(0, 2**64) == [
        Jump(DATA + 0x20_0000, TEXT + 0x20_0055, "pointer"),
        Jump(TEXT + 0x20_0007, TEXT + 0x20_0099, "jump"),
    ]
    assert MidFunctionEntries.unpack(packed[:-1], TEXT) is None and MidFunctionEntries.unpack(b"", TEXT) is None


# --- a whole kernel --------------------------------------------------------------------------------------------------

@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


@pytest.fixture
def shelf(cache: Cache) -> Shelf:
    return cache.shelf("ab" * 20, "7" * 64)


def guest(listing: str, offsets: dict[str, int] | None = None) -> tuple[Pages, Kernel]:
    memory = Pages()
    memory.put(TEXT, b"\xcc" * 0x1000)
    memory.put(ONE, code(listing))
    memory.put(DATA, bytes(0x1000))
    names = {**NAMES, "_etext": TEXT + SIZE, "d_boot_cpu_data": DATA + 0x100, "d_kprobe_table": DATA + 0x400}
    names |= {"d__sdata": DATA + 0x800, "d__edata": DATA + 0x1000}
    del names["d__etext"]
    return memory, kernel(memory, {n.removeprefix("d_"): at for n, at in names.items()}, offsets or {})


def of(there: Kernel, shelf: Shelf | None) -> list[Jump]:
    found = mid_function_entries.of_kernel(there, X86_64.decode, OriginalText(there, X86_64), shelf, lambda _: None)
    return found.landings.within(0, 2**64)


HONEST, HOSTILE = "e9 04 01 00 00  jmp two+9", "e9 fb 00 00 00  jmp two"


def of_and_said(
    there: Kernel, shelf: Shelf, at_rest: mid_function_entries.AtRest | None = None
) -> tuple[list[Jump], int]:
    said: list[str] = []
    originals = OriginalText(there, X86_64)
    rest = at_rest or (lambda text, base: text)
    found = mid_function_entries.of_kernel(there, X86_64.decode, originals, shelf, said.append, rest)
    return found.landings.within(0, 2**64), len(said)


def test_the_same_bytes_are_looked_at_once(shelf: Shelf) -> None:
    _, there = guest(HONEST)
    assert of_and_said(there, shelf) == ([Jump(ONE, TWO + 9)], 1)
    assert of_and_said(there, shelf) == ([Jump(ONE, TWO + 9)], 0)


def test_a_guest_that_hides_a_branch_is_not_believed_about_the_next_one(shelf: Shelf) -> None:
    """The same build-id, the same symbols, the same CPU: the branch into a function is in the other one's text."""
    _, hostile = guest(HOSTILE)
    assert of_and_said(hostile, shelf) == ([], 1)
    _, honest = guest(HONEST)
    assert of_and_said(honest, shelf) == ([Jump(ONE, TWO + 9)], 1)
    assert of_and_said(hostile, shelf) == ([], 0)


def with_filler(listing: str, detour: str = "") -> tuple[Pages, Kernel]:
    """A kernel with so much filler behind its last function that there is a detour in it."""
    memory, _ = guest(listing)
    memory.put(FILLER, code(f"c3  ret\n{'cc ' * 0x500} int3"))
    if detour:
        memory.put(FILLER + 0x480, code(detour))
    names = {"_stext": TEXT, "one": ONE, "two": TWO, "last": FILLER, "_etext": TEXT + 0x1000}
    names |= {"d_kprobe_table": DATA + 0x400, "d__sdata": DATA + 0x800, "d__edata": DATA + 0x1000}
    return memory, kernel(memory, {name.removeprefix("d_"): at for name, at in names.items()}, {})


def test_detours_of_ours_make_no_other_text(shelf: Shelf) -> None:
    _, there = with_filler(HONEST)
    assert of_and_said(there, shelf) == ([Jump(ONE, TWO + 9)], 1)
    memory, there = with_filler(HONEST, "e9 89 fa ff ff  jmp two+14")
    memory.put_words(DATA + 0x800, FILLER + 0x480)
    assert of_and_said(there, shelf) == ([Jump(ONE, TWO + 9)], 0)


def test_a_guest_with_a_branch_into_empty_filler_is_not_believed_about_one_with_code_there(shelf: Shelf) -> None:
    """The code leads into a function: another debugger's detour, whose branch stands in both."""
    branch = "e9 7b 06 00 00  jmp last+0x480"
    _, hostile = with_filler(branch)
    assert of_and_said(hostile, shelf) == ([], 1)
    _, honest = with_filler(branch, "e9 89 fa ff ff  jmp two+14")
    assert of_and_said(honest, shelf) == ([Jump(FILLER + 0x480, TWO + 14)], 1)
    assert of_and_said(hostile, shelf) == ([], 1), "neither is kept"


def test_a_guest_that_hides_a_pointer_is_not_believed_about_the_next_one(shelf: Shelf) -> None:
    _, hostile = guest("c3  ret")
    assert of_and_said(hostile, shelf) == ([], 1)
    memory, honest = guest("c3  ret")
    memory.put_words(DATA + 0x808, TWO + 3, TWO)
    assert of_and_said(honest, shelf) == ([Jump(DATA + 0x808, TWO + 3, "pointer")], 0), "data are read in each session"


def test_other_symbols_have_other_landings(shelf: Shelf, cache: Cache) -> None:
    _, there = guest(HONEST)
    of_and_said(there, shelf)
    assert of_and_said(there, cache.shelf("ab" * 20, "8" * 64))[1] == 1


def test_what_the_kernel_rewrites_while_it_runs_is_looked_at_at_rest(shelf: Shelf) -> None:
    """A tracer that is started meanwhile makes no other text of it."""
    sites = Rewritten([ONE], [], [], [])

    def at(text: bytes, base: int) -> bytes:
        return at_rest(text, base, sites, {ONE, TWO}.__contains__)

    _, idle = guest("0f 1f 44 00 00  nop\n c3  ret")
    _, traced = guest("e8 fb 0f 00 00  call beyond the text\n c3  ret")
    assert of_and_said(idle, shelf, at) == ([], 1)
    assert of_and_said(traced, shelf, at) == ([], 0)
    _, patched = guest("e8 04 01 00 00  call two+9\n c3  ret")
    assert of_and_said(patched, shelf, at) == ([Jump(ONE, TWO + 9, "call")], 1), "no tracer's"


@pytest.mark.parametrize("size", range(0, 65, 5))
def test_a_damaged_entry_is_found_anew(shelf: Shelf, size: int) -> None:
    _, there = guest(HONEST)
    of_and_said(there, shelf)
    (path,) = [path for path in shelf.folder.iterdir() if path.name.startswith("landings-")]
    path.write_bytes(path.read_bytes()[:size])
    assert of_and_said(there, shelf) == ([Jump(ONE, TWO + 9)], 1)
    assert of_and_said(there, shelf) == ([Jump(ONE, TWO + 9)], 0)


def test_kept_rows_are_bounded_and_in_order() -> None:
    packed = MidFunctionEntries.of([Jump(TEXT + 7, TEXT + 0x99, "jump"), Jump(DATA, TEXT + 0x55, "pointer")]).pack(TEXT)
    far = packed[:8] + pack("<q", -(1 << 62)) + packed[16:]
    swapped = packed[:8] + packed[16:24] + packed[8:16] + packed[24:]
    assert MidFunctionEntries.unpack(packed, TEXT) is not None
    for wrong in (far, swapped, packed[:-1] + b"\x09", pack("<II", 2, 1 << 31) + packed[8:]):
        assert MidFunctionEntries.unpack(wrong, TEXT) is None


KPROBE = {"kprobe.hlist": 0, "kprobe.addr": 0x28, "kprobe.pre_handler": 0x40, "kprobe.opcode": 0x50}


def test_kprobes_of_the_guest_are_looked_through() -> None:
    memory, there = guest("cc 04 01 00 00  int3 on: jmp two+9", KPROBE)
    probe = DATA + 0x800
    memory.put_words(DATA + 0x400 + 8 * hashed(ONE), probe)
    memory.put_words(probe + 0x28, ONE)
    memory.put(probe + 0x50, b"\xe9")
    assert of(there, None) == [Jump(ONE, TWO + 9)]


def test_kprobes_that_cannot_be_read_are_an_error() -> None:
    memory, there = guest("c3  ret")
    memory.put_words(DATA + 0x400, DATA + 0x800)
    with pytest.raises(OptprobeError):
        of(there, None)


def test_what_follows_a_boundary_of_the_linker_s_is_filler() -> None:
    """Detours of ours lie there: a kernel without page-table isolation has less of it than a function may be long."""
    names = {"_stext": TEXT, "one": ONE, "__entry_text_end": TWO, "d__etext": TEXT + SIZE}
    functions = Functions(symbols(**names), TEXT, bytes(SIZE))
    assert (functions.index(TWO - 1), functions.index(TWO), functions.index(TWO + 9)) == (1, -1, -1)
    assert KernelText(kernel(Pages(), names), X86_64).function(TWO + 9) is None


def filled(spans: int, seed: int) -> tuple[bytes, Any, list[tuple[int, int]], list[tuple[int, int]]]:
    """Return text with filler at so many places, its kernel, where each symbol with filler lies, and words to it."""
    rng, text, behind = random.Random(seed), bytearray(), []
    for _ in range(spans):
        text += b"\x90" * rng.randrange(1, 64)
        start = len(text)
        text += mid_function_entries.FILLING + b"\xcc" * rng.randrange(64) + b"\x90" * rng.randrange(64)
        behind.append((TEXT + start, TEXT + len(text)))
    text += b"\x90"

    def at(address: int) -> Any:
        first, last = next((span for span in behind if span[0] <= address < span[1]), (address, address))
        return SimpleNamespace(offset=address - first, size=last - first) if first < last else None

    edges = [place + each for span in behind for place in span for each in (-1, 0, 1)]
    targets = edges + [rng.randrange(TEXT, TEXT + len(text)) for _ in range(3 * spans)]
    rng.shuffle(targets)
    words = [(DATA + 8 * row, target) for row, target in enumerate(targets)]
    return bytes(text), SimpleNamespace(symbols=SimpleNamespace(at=at)), behind, words


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("spans", [0, 1, 40])
def test_words_that_lead_behind_functions_are_left_out(spans: int, seed: int) -> None:
    text, there, behind, words = filled(spans, seed)
    left = mid_function_entries._functions_alone(there, TEXT, text, words)[1]
    assert left == [row for row in words if not any(first <= row[1] < last for first, last in behind)]


def test_2_000_functions_with_filler_behind_are_not_tried_for_each_word() -> None:
    text, there, _, words = filled(2000, 1)
    there.symbols.at = lambda address: None
    (_, left), calls = calls_in(lambda: mid_function_entries._functions_alone(there, TEXT, text, words))
    assert 0 < len(left) < len(words) and calls < 40 * 2000 + 4 * len(words)
