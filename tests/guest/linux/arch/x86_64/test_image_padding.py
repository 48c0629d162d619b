"""The mapping of data memory, on page tables of our own making."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux import physical_patch
from gdb_optprobe.guest.linux.arch.x86_64 import find as finding
from gdb_optprobe.guest.linux.arch.x86_64 import image_padding
from gdb_optprobe.guest.linux.arch.x86_64.paging import GLOBAL, LARGE, NO_EXECUTE, PRESENT, WRITABLE, Mapping, translate
from gdb_optprobe.guest.machine import Vcpu
from tests.guest.linux.fake_kernel import Machine, kernel

IMAGE = 0xFFFFFFFF81000000
ENTRY = IMAGE + 0x200000
PHYSICAL = 0x4000000
PGD, PUD, PMD, PTE, DATA_PMD = 0x1000, 0x3000, 0x4000, 0x5000, 0x6000
USER_PUD, USER_PMD = 0x7000, 0x8000
EXECUTE = 0x121 | LARGE  # present, accessed, global: a large page of text
NAMES = {"_stext": IMAGE + 0x1E0000, "text_tail": IMAGE + 0x1FC008, "__entry_text_start": ENTRY,
         "__entry_text_end": ENTRY + 0x1000, "behind": ENTRY + 0x1800, "d__etext": ENTRY + 0x2000,
         "init_task": IMAGE + 0x400000}  # fmt: skip
PAGES, FRAMES = 12, 2


class Guest(Machine):
    """Kernel memory is what the page tables say it is."""

    def read(self, address: int, size: int) -> bytes:
        return self.read_physical(address - IMAGE + PHYSICAL, size)

    def read_physical(self, address: int, size: int) -> bytes:
        return Machine.read(self, address, size)

    def selected(self) -> Vcpu:
        return self.vcpus()[0]

    def write_physical(self, address: int, data: bytes) -> None:
        self.read_physical(address, len(data))
        self.writes.append(address)
        self.put(address, data)


def guest(small: bool = False, isolated: bool = False, user_mode: bool = False) -> Guest:
    """A kernel whose text before ENTRY is one large page (or small ones), its tail filler from 0x1fd000 on."""
    there = Guest({"cr3": PGD | (0x1000 if user_mode else 0), "efer": image_padding.NXE})
    for table in (PGD, PGD + 0x1000, PUD, PMD, PTE, DATA_PMD, USER_PUD, USER_PMD):
        there.put(table, bytes(4096))
    there.put_words(PGD + 511 * 8, PUD | 0x63)
    there.put_words(PUD + 510 * 8, PMD | 0x63)
    there.put_words(PMD + 8 * 8, *((PTE | 0x63,) if small else (PHYSICAL | EXECUTE,)))
    for page in range(512):
        there.put_words(PTE + 8 * page, PHYSICAL + 4096 * page | 0x121)
    there.put_words(PMD + 9 * 8, PHYSICAL + 0x200000 | EXECUTE)
    there.put_words(PMD + 10 * 8, PHYSICAL + 0x400000 | 0xE3 | NO_EXECUTE)
    there.put(PHYSICAL + 0x1E0000, b"\x90" * 0x4000 + b"\xcc" * 0x1C000)
    there.put(PHYSICAL + 0x200000, b"\x90" * 4096)
    if isolated:
        there.put_words(PGD + 0x1000 + 511 * 8, USER_PUD | 0x63)
        there.put_words(USER_PUD + 510 * 8, USER_PMD | 0x63)
        there.put_words(USER_PMD + 8 * 8, PHYSICAL | EXECUTE, PHYSICAL + 0x200000 | EXECUTE)
    return there


TAIL = {**NAMES, "text_tail": IMAGE + 0x1E4008}


def found(
    there: Guest, isolated: bool = False
) -> tuple[image_padding.ImagePadding, image_padding.Tables, tuple[physical_patch.PhysicalPatch, ...]]:
    names = {**TAIL, **({"pti_finalize": IMAGE, "init_top_pgt": IMAGE + 0x400000} if isolated else {})}
    if isolated:
        # init_top_pgt lies at PGD: map its page so.
        there.put_words(PMD + 10 * 8, 0xE3 | NO_EXECUTE)
        names |= {"init_top_pgt": IMAGE + 0x400000 + PGD}
    linux = kernel(there, names)
    use = image_padding.find(linux, ((FRAMES, 0),), PAGES)
    tables = image_padding.page_tables(there, linux)
    return use, tables, image_padding.plan_mapping(use, tables, there.read_physical)


def at(there: Guest, address: int, root: int = PGD) -> Mapping | None:
    return translate(there.read_physical, root, address)


def test_page_tables_of_a_kernel_without_symbols_of_its_data() -> None:
    there = guest()
    names = {"_stext": NAMES["_stext"], "d___start___bug_table": IMAGE + 0x400000}
    assert image_padding.page_tables(there, kernel(there, names)).roots == (PGD,)
    with pytest.raises(OptprobeError, match="init_task"):
        image_padding.page_tables(there, kernel(there, {"_stext": NAMES["_stext"]}))


def test_filler_is_whole_pages_below_the_entry_text() -> None:
    use, _, _ = found(guest())
    assert use.frames == (ENTRY - FRAMES * 4096, ENTRY)
    assert use.code == ((ENTRY - (FRAMES + 3 + PAGES) * 4096, ENTRY - (FRAMES + 3) * 4096),)
    assert len(use.tables) == 3 and all(use.code[0][1] <= page < use.frames[0] for page in use.tables)


def test_filler_with_a_foreign_byte_is_not_filler() -> None:
    there = guest()
    there.put(PHYSICAL + 0x1FF123, b"\x90")
    with pytest.raises(image_padding.NoPadding):
        found(there)


@pytest.mark.parametrize("small", [False, True])
def test_data_appears_writable_and_not_executable(small: bool) -> None:
    there = guest(small)
    use, _, patches = found(there)
    physical_patch.apply(patches, there)
    for n in range(FRAMES):
        mapping = at(there, use.data[0] + n * 4096)
        assert mapping is not None and mapping.writable and not mapping.executable and not mapping.user
        assert mapping.physical == PHYSICAL + use.frames[0] - IMAGE + n * 4096
        assert not there.read_physical(mapping.physical, 4096).strip(b"\xcc"), "nobody has taken any of it yet"
    assert at(there, use.data[1]) is None and at(there, use.data[0] - 1) is None


@pytest.mark.parametrize("small", [False, True])
def test_text_keeps_every_translation_and_loses_only_the_right_to_execute(small: bool) -> None:
    there = guest(small)
    before = [at(there, IMAGE + n * 4096) for n in range(512)]
    use, _, patches = found(there)
    physical_patch.apply(patches, there)
    for n, old in enumerate(before):
        address = IMAGE + n * 4096
        new = at(there, address)
        assert old is not None and new is not None
        assert new.frame_of(address) == old.frame_of(address)
        assert (new.writable, new.user, new.is_global) == (old.writable, old.user, old.is_global)
        assert new.executable is not (address in use.tables or use.frames[0] <= address < use.frames[1])


def test_large_page_attributes_move_to_their_small_places() -> None:
    there = guest()
    there.put_words(PMD + 8 * 8, PHYSICAL | EXECUTE | 1 << 12)  # PAT
    _, _, patches = found(there)
    physical_patch.apply(patches, there)
    entry = at(there, IMAGE).entry  # type: ignore[union-attr]
    assert entry == PHYSICAL | PRESENT | GLOBAL | 1 << 5 | 1 << 7


def test_one_entry_comes_last_and_its_tables_stand_before() -> None:
    there = guest()
    _, _, patches = found(there)
    assert patches[-1].old == bytes(8) and patches[-1].address == PUD + 509 * 8
    assert [len(patch.new) for patch in patches[-6:]] == [4096, 4088, 8, 4096, 8, 8]
    assert patches[-2].address == PMD + 8 * 8


def test_undo_leaves_every_byte_as_it_was() -> None:
    there = guest()
    before = {page: bytes(data) for page, data in there.pages.items()}
    use, _, patches = found(there)
    physical_patch.apply(patches, there)
    there.write_physical(PHYSICAL + use.frames[0] - IMAGE, b"counted!")
    physical_patch.undo(patches, there)
    assert {page: bytes(data) for page, data in there.pages.items()} == before


def test_old_bytes_first() -> None:
    there = guest()
    _, _, patches = found(there)
    there.put_words(patches[-1].address, 0x9063)
    there.writes.clear()
    with pytest.raises(physical_patch.Changed):
        physical_patch.apply(patches, there)
    assert there.writes == []


def test_something_is_mapped_already() -> None:
    there = guest()
    there.put_words(PUD + 509 * 8, 0x9063)
    with pytest.raises(image_padding.NoPadding) as refused:
        found(there)
    assert "set optprobe arena" in refused.value.hint


def test_no_execute_bit_is_reserved_without_nxe() -> None:
    there = guest()
    there.state[0]["efer"] = 0
    use, tables, patches = found(there)
    assert not tables.no_execute
    physical_patch.apply(patches, there)
    assert not at(there, use.data[0]).entry & NO_EXECUTE  # type: ignore[union-attr]
    assert at(there, IMAGE).level == 2, "nothing to take away"  # type: ignore[union-attr]


def test_isolation_maps_the_text_twice() -> None:
    there = guest(isolated=True, user_mode=True)
    use, tables, patches = found(there, isolated=True)
    assert tables.roots == (PGD, PGD + 0x1000)
    physical_patch.apply(patches, there)
    for root in tables.roots:
        mapping = at(there, use.frames[0], root)
        assert mapping is not None and not mapping.executable
        assert at(there, IMAGE, root).executable  # type: ignore[union-attr]
    assert at(there, use.data[0], PGD + 0x1000) is None and WRITABLE


def test_what_an_earlier_session_left_ends_behind_the_last_word_it_wrote() -> None:
    there = guest()
    use, tables, patches = found(there)
    physical_patch.apply(patches, there)
    linux = kernel(there, TAIL)

    def free() -> tuple[int, int]:
        left = image_padding.left_behind(linux, tables, there.read_physical, sizes=((FRAMES, 0),))
        assert left is not None
        return left.data

    assert free() == use.data
    # A hit is counted in the first word; the table behind it is reached through a register.
    there.put(use.code[0][0] - IMAGE + PHYSICAL, count_at(use.code[0][0], use.data[0]))
    assert free() == (use.data[0] + 8, use.data[1])
    there.put(use.frames[0] - IMAGE + PHYSICAL, bytes(0x1008) + b"\x01\xcc")
    assert free() == (use.data[0] + 0x1010, use.data[1])
    there.put(use.code[0][0] - IMAGE + PHYSICAL, b"\xcc" * 8)
    assert free() == use.data, "nothing is left that counts"


def count_at(address: int, counter: int) -> bytes:
    return b"\xf0\x48\xff\x05" + (counter - address - 8).to_bytes(4, "little", signed=True)


def test_what_is_written_stands_until_it_is_undone() -> None:
    there = guest()
    _, _, patches = found(there)
    assert not physical_patch.are_in_place(patches, there)
    physical_patch.apply(patches, there)
    there.put(patches[0].address, b"counted")
    assert physical_patch.are_in_place(patches, there), "data change"
    physical_patch.undo(patches, there)
    assert not physical_patch.are_in_place(patches, there)


KIB = 1024
IMAGES = {
    # Where the runs of filler of Debian's images are, behind the start of text, in KiB: from, to.
    "5.10 cloud": ((8924, 10240), (10248, 11280), (11284, 12288)),
    "5.10 full": ((9296, 10240), (10248, 11280), (11284, 12288)),
    "6.1 cloud": ((10304, 12288), (12296, 13328), (13332, 14336)),
    "6.1 full": ((10560, 12288), (12296, 13328), (13332, 14336)),
    "6.12 cloud": ((12912, 14336), (14348, 15376), (15380, 16384)),
    "6.12 full": ((13220, 14336), (14348, 15376), (15380, 16384)),
    "7.2 cloud": ((12, 1040), (1044, 2048)),
    "one run of an older arena": ((10304, 11852),),
    "hardly any": ((1000, 1108), (1200, 1300)),
}


class Image:
    """Text of a kernel: functions of 2 KiB, which end a few bytes into the page before each run."""

    def __init__(self, runs: tuple[tuple[int, int], ...]) -> None:
        self.runs = [(IMAGE + start * KIB, IMAGE + end * KIB) for start, end in runs]
        self.size = max(16384, runs[-1][1] + 512) * KIB
        self.changed: dict[int, int] = {}
        filled = [at for start, end in self.runs for at in range(start, end, 2 * KIB)]
        functions = sorted({*range(IMAGE, IMAGE + self.size, 2 * KIB)} - {*filled})
        ends = {end for _, end in self.runs}
        # The last function before a run is a long one, as far as its symbol tells.
        long = {at for start, _ in self.runs for at in range(start - 32 * KIB + 2 * KIB, start, 2 * KIB)}
        names = {f"f{at:x}": at for at in functions if at in ends or at not in long}
        self.kernel = kernel(self, {"_stext": IMAGE, **names, "d__etext": IMAGE + self.size})  # type: ignore[arg-type]

    def read(self, address: int, size: int) -> bytes:
        assert address >= IMAGE and address + size <= IMAGE + self.size
        found = bytearray(b"\x90" * size)
        for start, end in self.runs:
            low, high = max(start, address), min(end, address + size)
            if low < high:
                found[low - address : high - address] = b"\xcc" * (high - low)
        for at, byte in self.changed.items():
            if address <= at < address + size:
                found[at - address] = byte
        return bytes(found)


def pieces(use: image_padding.ImagePadding) -> list[tuple[int, int]]:
    return sorted([*use.code, use.journal, *((page, page + 4096) for page in use.tables), use.frames])


@pytest.mark.parametrize("name", IMAGES)
def test_the_arena_takes_what_there_is(name: str) -> None:
    image = Image(IMAGES[name])
    use = image_padding.find(image.kernel)
    used = pieces(use)
    assert all(one[1] <= other[0] for one, other in pairwise(used)), "no piece is used twice"
    assert all(any(start <= one[0] < one[1] <= end for start, end in image.runs) for one in used)
    # What is mapped anew is in one large page.
    assert use.journal[0] // image_padding.LARGE_PAGE == (use.frames[1] - 1) // image_padding.LARGE_PAGE
    code = sum(end - start for start, end in use.code)
    assert code >= use.data[1] - use.data[0] + use.journal[1] - use.journal[0] or code == 256 * 4096
    total = sum(end - start for start, end in image.runs)
    assert code + use.data[1] - use.data[0] >= min(total * 2 // 3, 408 * 4096)


def test_an_arena_whose_data_fit_is_where_it_always_was() -> None:
    """A journal that is in a guest now is found by it."""
    end = IMAGE + 12288 * KIB
    use = image_padding.find(Image(IMAGES["6.1 cloud"]).kernel)
    assert use.frames == (end - 192 * 4096, end)
    assert use.journal == (end - 259 * 4096, end - 195 * 4096)
    rest = 256 - 237
    assert use.code == ((end - 496 * 4096, end - 259 * 4096), (end + (260 - rest) * 4096, end + 260 * 4096))


@pytest.mark.parametrize("name", IMAGES)
def test_another_gdb_finds_the_journal_whatever_was_written(name: str) -> None:
    image = Image(IMAGES[name])
    use = image_padding.find(image.kernel)
    for start, end in pieces(use):
        image.changed |= dict.fromkeys((*range(start, end, 4096), end - 1), 0x41)
    (found,) = [place for place in image_padding.places(image.kernel) if place.journal == use.journal]
    assert found.data == use.data and found.frames == use.frames
    assert all(any(one[0] <= two[0] and two[1] <= one[1] for one in found.code) for two in use.code)
    assert not any(start < use.journal[1] and use.journal[0] < end for start, end in found.code)


@pytest.mark.parametrize("name", IMAGES)
def test_a_journal_that_was_only_begun_hides_no_filler(name: str) -> None:
    image = Image(IMAGES[name])
    use = image_padding.find(image.kernel)
    image.changed |= dict.fromkeys((use.journal[0], sum(use.journal) // 2), 0x41)
    (found,) = [place for place in image_padding.places(image.kernel) if place.journal == use.journal]
    assert image_padding.as_found(image.kernel, found.code) == use.code


@pytest.mark.parametrize("name", IMAGES)
def test_no_half_of_a_journal_is_where_another_may_begin(name: str) -> None:
    halves = [
        at
        for place in image_padding.places(Image(IMAGES[name]).kernel)
        for at in (place.journal[0], sum(place.journal) // 2)
    ]
    assert len(set(halves)) == len(halves)


def test_what_is_no_filler_is_none_however_long_its_symbol() -> None:
    image = Image(IMAGES["7.2 cloud"])
    image.changed[image.runs[1][1] - 1] = 0xC3
    use = image_padding.find(image.kernel)
    start, end = image.runs[0]
    assert all(start <= one[0] < one[1] <= end for one in pieces(use))


def test_too_little_filler_is_refused_with_its_figures() -> None:
    with pytest.raises(image_padding.NoPadding) as refused:
        image_padding.find(Image(((100, 180), (300, 340))).kernel)
    text = str(refused.value)
    assert "120 KiB" in text and "2 runs" in text and "204 KiB" in text and "108 of them in one run" in text
    assert "set optprobe arena" in refused.value.hint


def test_the_kernel_is_found_where_it_starts_with_an_arena_in_its_first_large_page() -> None:
    there = guest()
    there.state[0] |= {"cr0": finding.PAGING | finding.PROTECTED, "efer": image_padding.NXE | finding.LONG_MODE_ACTIVE}
    there.put_words(PMD + 10 * 8, PHYSICAL + 0x400000 | 0xA1 | NO_EXECUTE, PHYSICAL + 0x600000 | 0xE3 | NO_EXECUTE)

    def text() -> tuple[int, int, int]:
        known = finding.find(there)
        assert known is not None
        return known[0].text.start, known[0].text.end, known[0].rodata.start

    before = text()
    assert before == (IMAGE, IMAGE + 0x400000, IMAGE + 0x400000)
    _, _, patches = found(there)
    physical_patch.apply(patches, there)
    assert text() == before
