"""Memory that the kernel lends, with a kernel of a few page tables that carries out what it is called for."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from gdb_optprobe.guest import native_call
from gdb_optprobe.guest.linux import physical_patch
from gdb_optprobe.guest.linux.arch.base import Room, StillLent
from gdb_optprobe.guest.linux.arch.x86_64 import image_padding, padding, stacks, vmalloc_loan
from gdb_optprobe.guest.linux.arch.x86_64.padding import Slot
from gdb_optprobe.guest.linux.arch.x86_64.paging import ADDRESS, NO_EXECUTE, WRITABLE, Mapping, table_entry, translate
from gdb_optprobe.guest.linux.arch.x86_64.user_kernel import VCPUS
from gdb_optprobe.guest.linux.arch.x86_64.vmalloc_loan import Borrower
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.machine import Vcpu
from gdb_optprobe.guest.native_call import CallFailed
from gdb_optprobe.guest.saved_pcs import SavedWords
from gdb_optprobe.isa.x86_64 import X86_64
from gdb_optprobe.isa.x86_64.calling import CALLING
from tests.guest.linux.fake_kernel import Clock, Machine, kernel

PAGE = 4096
IMAGE, TEXT_END = 0xFFFFFFFF81000000, 0xFFFFFFFF81001A21
PHYSICAL = 0x4000000
DIRECT = vmalloc_loan.DIRECT_MAPS[0]
AREA = 0xFFFFC90000400000
FRAMES = 0x9000000
PGD, SAFE = 0x1000, IMAGE + 0x100
BASE = DIRECT + PHYSICAL + 0x2000
FUNCTIONS = ("vmalloc", "memset", "set_memory_ro", "set_memory_rw", "flush_tlb_all", "vfree")
NAMES = {
    "_stext": IMAGE, "d__etext": TEXT_END, "init_task": IMAGE + 0x2000, "ksys_read": SAFE, "d___preempt_count": 8,
    **{name: IMAGE + 0x200 + 0x10 * n for n, name in enumerate(FUNCTIONS)},
}  # fmt: skip
WHY = "no filler"
CLOCK = Clock()
ARGUMENT = re.compile(r"mov(?:l|absq) \$(-?(?:0x)?[0-9a-f]+), %[re](?:di|si|dx)$")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_call, "time", CLOCK)


def argument(text: str) -> int:
    found = ARGUMENT.match(text)
    assert found is not None
    return int(found[1], 0) % 2**64


class Guest(Machine):
    """One vCPU at a time; `lends`: what vmalloc returns. aliases: whether set_memory_ro changes the direct map."""

    def __init__(self, lends: int = AREA, aliases: bool = True, comes: bool = True) -> None:
        super().__init__({"rip": 0, "cr3": PGD, "efer": image_padding.NXE, "gs_base": BASE - 8, "eflags": 0x200})
        self.state[0]["rip"] = SAFE
        self.lends, self.aliases, self.comes = lends, aliases, comes
        self.calls: list[str] = []
        self.fails = ""
        self.fresh = PGD + PAGE
        self.frame(PGD)
        for n in range(4):
            self.frame(PHYSICAL + n * PAGE, 0x90)
            self.map(IMAGE + n * PAGE, PHYSICAL + n * PAGE, 0x121)
            self.map(DIRECT + PHYSICAL + n * PAGE, PHYSICAL + n * PAGE, 0x163 | NO_EXECUTE)
        tail = TEXT_END % PAGE
        self.pages[PHYSICAL // PAGE + 1][tail:] = b"\xcc" * (PAGE - tail)
        self.pages[PHYSICAL // PAGE + 2][:] = bytes(PAGE)
        for n in range(vmalloc_loan.SIZE // PAGE):
            # Not side by side, as vmalloc has them.
            self.map(DIRECT + FRAMES + 2 * n * PAGE, FRAMES + 2 * n * PAGE, 0x163 | NO_EXECUTE)

    # memory ----------------------------------------------------------------------------------------------------------

    def frame(self, address: int, byte: int = 0) -> None:
        self.pages[address // PAGE] = bytearray([byte]) * PAGE

    def map(self, address: int, frame: int, flags: int) -> None:
        table = PGD
        for shift in (39, 30, 21):
            at = table + (address >> shift & 511) * 8
            entry = self.word(at)
            if not entry:
                entry = table_entry(self.fresh)
                self.frame(self.fresh)
                self.put_words(at, entry)
                self.fresh += PAGE
            table = entry & ADDRESS
        self.put_words(table + (address >> 12 & 511) * 8, frame | flags)

    def word(self, physical_address: int) -> int:
        return int.from_bytes(self.read_physical(physical_address, 8), "little")

    def at(self, address: int) -> Mapping | None:
        return translate(self.read_physical, PGD, address)

    def read(self, address: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            at = address + len(data)
            found = self.at(at)
            assert found is not None, f"{at:#x} is not mapped"
            data += self.read_physical(found.frame_of(at), min(size - len(data), PAGE - at % PAGE))
        return data

    def write(self, address: int, data: bytes) -> None:
        for offset in range(0, len(data), 8):
            found = self.at(address + offset)
            assert found is not None
            self.writes.append(address + offset)
            self.put(found.frame_of(address + offset), data[offset : offset + 8])

    def read_physical(self, address: int, size: int) -> bytes:
        return Machine.read(self, address, size)

    def write_physical(self, address: int, data: bytes) -> None:
        self.writes.append(address)
        page, offset = divmod(address, PAGE)
        self.pages[page][offset : offset + len(data)] = data

    # running ---------------------------------------------------------------------------------------------------------

    def run_until(self, addresses: Sequence[int], timeout: float) -> Vcpu | None:
        if SAFE in addresses:
            if self.comes:
                return Vcpu(0, "1.1")
            self.passes(timeout)
            return None
        pc = self.state[0]["rip"]
        code = X86_64.decode(self.read(pc, CALLING.size), pc)
        if code[0].text == "pushfq":
            target = next(insn.target for insn in code if insn.text.startswith("call"))
            name = next(name for name in FUNCTIONS if NAMES[name] == target)
            self.calls.append(name)
            if name == self.fails:
                self.passes(timeout)
                return None
            result = getattr(self, name)(*map(argument, (insn.text for insn in code if ARGUMENT.match(insn.text))))
            self.state[0]["rax"] = result
        self.state[0]["rip"] = addresses[0]
        return Vcpu(0, "1.1")

    def passes(self, time: float) -> None:
        CLOCK.now += time

    def vmalloc(self, size: int) -> int:
        assert size == vmalloc_loan.SIZE
        for n in range(size // PAGE if self.lends else 0):
            self.frame(FRAMES + 2 * n * PAGE, 0x5A)
            self.map(AREA + n * PAGE, FRAMES + 2 * n * PAGE, 0x163 | NO_EXECUTE)
        return self.lends

    def memset(self, address: int, byte: int, size: int) -> int:
        for at in range(address, address + size, PAGE):
            found = self.at(at)
            assert found is not None and found.writable
            self.frame(found.frame_of(at), byte)
        return address

    def set_memory_ro(self, address: int, pages: int, writable: int = 0) -> int:
        for at in range(address, address + pages * PAGE, PAGE):
            found = self.at(at)
            assert found is not None
            alias = self.at(DIRECT + found.frame_of(at))
            assert alias is not None
            for each in (found, alias) if self.aliases else (found,):
                self.put_words(each.entry_address, each.entry & ~WRITABLE | writable)
        return 0

    def set_memory_rw(self, address: int, pages: int) -> int:
        return self.set_memory_ro(address, pages, writable=WRITABLE)

    def flush_tlb_all(self) -> int:
        assert self.at(image_padding.DATA_AT) is None, "nothing leads there now"
        return 0

    def vfree(self, address: int) -> int:
        for at in range(address, address + vmalloc_loan.SIZE, PAGE):
            found = self.at(at)
            assert found is not None and found.writable
            alias = self.at(DIRECT + found.frame_of(at))
            assert (alias is not None and alias.writable) or not self.aliases
            self.put_words(found.entry_address, 0)
        return 0


def lender(guest: Guest, **names: int) -> Borrower:
    known = {name: at for name, at in (NAMES | names).items() if at}
    return Borrower(guest, kernel(guest, known), VCPUS)


def lends(guest: Guest) -> Room:
    planned = lender(guest).room(WHY)
    assert planned.borrow is not None
    return planned.borrow()


def tail(guest: Guest) -> bytes:
    return guest.read(TEXT_END, -TEXT_END % PAGE)


def test_what_would_be_lent_is_known_before_anything_is_changed() -> None:
    guest = Guest()
    planned = lender(guest).room(WHY)
    assert guest.writes == [] and guest.calls == []
    assert WHY in planned.notice and f"{vmalloc_loan.SIZE >> 10} KiB" in planned.notice
    assert planned.loan is None and planned.mapping == ()
    room = lends(guest)
    assert (room.code, room.data, room.fill) == (planned.code, planned.data, planned.fill)


def test_the_kernel_is_called_in_order_and_no_trace_of_the_calls_is_left() -> None:
    guest = Guest()
    before = tail(guest)
    room = lends(guest)
    assert [slot.area for slot in padding.slots(guest, *known(guest)) if slot.is_left] == [AREA], "till it is noted"
    room.take()
    assert guest.calls == ["vmalloc", "memset", "set_memory_ro", "flush_tlb_all"]
    assert tail(guest) == before and guest.state[0]["rip"] == SAFE


def test_nothing_is_writable_and_executable() -> None:
    guest = Guest()
    room = lends(guest)
    assert guest.at(image_padding.DATA_AT) is None, "not before the journal tells of it"
    room.take()
    rights: dict[str, set[tuple[bool, bool]]] = {}
    for name, (start, end) in {"data": room.data, "code": room.code[0], "journal": vmalloc_loan.JOURNAL}.items():
        for at in range(start, end, PAGE):
            found = guest.at(at)
            assert found is not None and not found.user
            rights.setdefault(name, set()).add((found.writable, found.executable))
            for other in (guest.at(AREA + at - image_padding.DATA_AT), guest.at(DIRECT + found.frame_of(at))):
                assert other is not None and other.physical == found.physical
                assert (other.writable, other.executable) == (name == "data", False)
    assert rights == {"data": {(True, False)}, "code": {(False, True)}, "journal": {(False, False)}}
    assert set(guest.read(vmalloc_loan.CODE[0], 64)) == {image_padding.FILL}


def test_the_journal_can_be_written_before_the_window_is_there() -> None:
    guest = Guest()
    room = lends(guest)
    guest.write(room.journal[0], b"optprobe")
    room.take()
    assert guest.read(vmalloc_loan.JOURNAL[0], 8) == b"optprobe"
    place = lender(guest).place()
    assert place is not None and place.journal == vmalloc_loan.JOURNAL and place.repay is not None


def test_the_loan_is_paid_back() -> None:
    guest = Guest()
    room = lends(guest)
    room.take()
    assert room.is_in_place()
    guest.calls.clear()
    room.give_back()
    assert guest.calls == ["flush_tlb_all", "set_memory_rw", "vfree"]
    assert guest.at(image_padding.DATA_AT) is None and guest.at(AREA) is None and not room.is_in_place()
    assert lender(guest).place() is None
    again = lends(guest)
    again.take()
    assert again.is_in_place()


def test_another_gdb_pays_it_back() -> None:
    guest = Guest()
    room = lends(guest)
    room.take()
    place = lender(guest).place()
    assert place is not None and place.repay is not None and room.loan is not None
    place.repay(room.loan, room.mapping)
    assert guest.at(image_padding.DATA_AT) is None and guest.at(AREA) is None


def test_an_arena_of_filler_is_no_loan() -> None:
    guest = Guest()
    assert lender(guest).place() is None
    for at in range(*vmalloc_loan.DATA, PAGE):
        guest.map(at, FRAMES, 0x163 | NO_EXECUTE)
    assert lender(guest).place() is None


def test_code_that_can_be_written_by_another_name_is_not_mapped_to_be_run() -> None:
    guest = Guest(aliases=False)
    with pytest.raises(image_padding.NoPadding, match="read-only"):
        lends(guest)
    assert guest.calls[-2:] == ["set_memory_rw", "vfree"] and guest.at(AREA) is None
    assert guest.at(image_padding.DATA_AT) is None


def test_why_it_is_not_lent_is_told_where_it_cannot_be_given_back_either() -> None:
    guest = Guest(aliases=False)
    guest.fails = "vfree"
    with pytest.raises(image_padding.NoPadding, match=r"read-only; \d+ KiB .* stay lent, used by nothing"):
        lends(guest)
    assert guest.calls[-1] == "vfree" and guest.at(image_padding.DATA_AT) is None


def test_a_kernel_that_has_nothing_to_lend() -> None:
    guest = Guest(lends=0)
    before = tail(guest)
    with pytest.raises(image_padding.NoPadding, match="lend"):
        lends(guest)
    assert guest.calls == ["vmalloc"] and tail(guest) == before


def test_no_thread_comes_to_where_it_may_call() -> None:
    guest = Guest(comes=False)
    writes = len(guest.writes)
    with pytest.raises(CallFailed):
        lends(guest)
    assert guest.calls == [] and len(guest.writes) == writes


def test_while_no_thread_comes_the_loan_stays_as_it_is() -> None:
    guest = Guest()
    room = lends(guest)
    room.take()
    guest.comes = False
    with pytest.raises(CallFailed):
        room.give_back()
    assert room.is_in_place()


@pytest.mark.parametrize("name", ["flush_tlb_all", "vfree"])
def test_what_cannot_be_given_back_is_used_by_nothing(name: str) -> None:
    guest = Guest()
    room = lends(guest)
    room.take()
    guest.fails = name
    with pytest.raises(StillLent, match="stay lent"):
        room.give_back()
    assert guest.at(image_padding.DATA_AT) is None


@pytest.mark.parametrize("name", [*FUNCTIONS, "ksys_read"])
def test_a_kernel_that_cannot_be_asked_is_refused_with_both_reasons(name: str) -> None:
    guest = Guest()
    with pytest.raises(image_padding.NoPadding) as refused:
        lender(guest, **{name: 0}).room(WHY)
    assert WHY in refused.value.message and "cannot be asked" in refused.value.message
    if name != "ksys_read":
        assert name in refused.value.message
    assert guest.writes == [] and guest.calls == []


def test_vmalloc_goes_by_another_name_in_newer_kernels() -> None:
    guest = Guest()
    assert lender(guest, vmalloc=0, vmalloc_noprof=NAMES["vmalloc"]).room(WHY).borrow is not None


def free(guest: Guest, **names: int) -> Slot:
    return padding.free_slot(guest, *known(guest, **names))


def known(guest: Guest, **names: int) -> tuple[Kernel, image_padding.Tables]:
    linux = kernel(guest, NAMES | names)
    return linux, image_padding.page_tables(guest, linux)


def test_padding_in_use_is_passed_over() -> None:
    guest = Guest()
    slot = free(guest)
    assert slot.start >= TEXT_END + padding.BESIDE and slot.start + padding.SIZE <= -(-TEXT_END // PAGE) * PAGE
    guest.put(PHYSICAL + slot.start - IMAGE + 3, b"\x55")
    assert free(guest).start == slot.start + padding.SIZE
    assert not any(each.is_left for each in padding.slots(guest, *known(guest))), "it is not known whose that is"
    with pytest.raises(image_padding.NoPadding, match="no padding"):
        free(guest, d__etext=IMAGE + 0x1FF1)


def test_padding_before_an_aligned_section_serves_where_the_text_fills_its_last_page() -> None:
    guest = Guest()
    aligned = {"d__etext": IMAGE + 0x2000, "entry": IMAGE + 0x1000}
    size = padding.SIZE + padding.BESIDE
    guest.put(PHYSICAL + 0x1000 - size, b"\xcc" * size)
    slot = free(guest, **aligned)
    assert (slot.start, slot.fill) == (IMAGE + 0x1000 - size, 0xCC)
    # What stands in it moves nothing.
    padding.write_note(guest, slot, AREA)
    (left,) = [each for each in padding.slots(guest, *known(guest, **aligned)) if each.is_left]
    assert (left.start, left.area) == (slot.start, AREA)
    padding.wipe_note(guest, left, AREA)
    assert free(guest, **aligned) == slot
    guest.put(PHYSICAL + 0xFFF, b"\xc3")
    with pytest.raises(image_padding.NoPadding, match="no padding"):
        free(guest, **aligned)


# a GDB that is killed in the middle ----------------------------------------------------------------------------------


class Killed(Exception):
    pass


def killed_at(guest: Guest, name: str) -> None:
    """As soon as the kernel carries out the function of that name."""

    def dies(*_: int) -> int:
        raise Killed

    before = getattr(guest, name)
    setattr(guest, name, dies)
    room = None
    with pytest.raises(Killed):
        room = lends(guest)
        room.take()
        room.give_back()
    setattr(guest, name, before)
    guest.state[0]["rip"] = SAFE
    guest.calls.clear()


def stacks_hold(monkeypatch: pytest.MonkeyPatch, *words: int) -> None:
    saved = SimpleNamespace(saved=lambda: [SavedWords("one", 0, array("Q", words))])
    monkeypatch.setattr(stacks, "missing", lambda kernel: "")
    monkeypatch.setattr(stacks, "Stacks", lambda *_: saved)


@pytest.mark.parametrize("name", ["memset", "set_memory_ro", "flush_tlb_all", "set_memory_rw"])
def test_what_a_killed_gdb_was_lent_is_given_back_by_the_next(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    guest = Guest()
    before = tail(guest)
    killed_at(guest, name)
    assert tail(guest) != before
    stacks_hold(monkeypatch)
    room = lends(guest)
    room.take()
    assert guest.calls[:3] == ["set_memory_rw", "vfree", "vmalloc"] and tail(guest) == before
    assert guest.at(image_padding.DATA_AT) is not None
    room.give_back()
    assert tail(guest) == before and guest.at(AREA) is None


def test_killed_in_the_first_or_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vmalloc", "vfree"):
        guest = Guest()
        before = tail(guest)
        killed_at(guest, name)
        stacks_hold(monkeypatch)
        lends(guest).take()
        assert guest.calls[0] == "vmalloc" and tail(guest) == before, "what may be freed is not freed again"


def test_a_thunk_that_a_thread_may_be_in_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    guest = Guest()
    killed_at(guest, "memset")
    (left,) = [slot for slot in padding.slots(guest, *known(guest)) if slot.is_left]
    stacks_hold(monkeypatch, left.start + 40)
    lends(guest).take()
    assert guest.calls[0] == "vmalloc"
    assert [slot.held for slot in padding.slots(guest, *known(guest)) if slot.is_left] == [left.held]
    monkeypatch.setattr(stacks, "missing", lambda kernel: "not all are known")
    assert lender(guest)._clear_up(known(guest)[1]) == ()


def test_a_note_is_gone_before_the_area_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed with the window there and the note too: the one that gives the memory back wipes it."""
    guest = Guest()
    before = tail(guest)
    room = lends(guest)
    monkeypatch.setattr(padding, "wipe_note", lambda *_: None)
    room.take()
    monkeypatch.undo()
    assert [slot.area for slot in padding.slots(guest, *known(guest)) if slot.is_left] == [AREA]

    def freed(area: int) -> int:
        assert not any(slot.area for slot in padding.slots(guest, *known(guest)))
        return 0

    guest.vfree = freed  # type: ignore[method-assign]
    room.give_back()
    assert guest.calls[-1] == "vfree" and tail(guest) == before


def test_something_is_in_the_window_already() -> None:
    guest = Guest()
    guest.map(image_padding.DATA_AT, FRAMES, 0x163)
    with pytest.raises(image_padding.NoPadding, match="mapped at"):
        lender(guest).room(WHY)


def test_the_tables_are_undone_where_they_stand_alone() -> None:
    guest = Guest()
    room = lends(guest)
    room.take()
    guest.put_words(room.mapping[-1].address, 0)
    assert not room.is_in_place() and not physical_patch.are_in_place(room.mapping[-1:], guest)
    room.give_back()
    assert guest.at(AREA) is None
