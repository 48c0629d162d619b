"""Memory for detours: the ends of text and image, and pages that the kernel has given away."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.aarch64 import image_padding
from gdb_optprobe.guest.linux.arch.aarch64.image_padding import JOURNAL, LINE, PAGE, SEGMENT
from gdb_optprobe.guest.linux.kernel import Kernel
from tests.guest.linux.fake_kernel import Pages, kernel

TEXT, END = 0xFFFF_8000_0800_0000, 0xFFFF_8000_0810_0000
DATA, IMAGE_END = 0xFFFF_8000_0900_0000, 0xFFFF_8000_0910_0000


@dataclass
class Records:
    """The pages that are reserved: all but these."""

    free: range

    def is_reserved(self, address: int) -> bool:
        return address not in self.free


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A kernel with the last 13 pages of its image reserved, and 50 KiB of zeros at its text's end."""
    memory = Pages()
    for at in range(0, SEGMENT, PAGE):
        memory.put(END - SEGMENT + at, bytes(1))
        memory.put(IMAGE_END - SEGMENT + at, bytes(1))
    memory.put(END - SEGMENT, b"code" * 0xE00)
    made = kernel(memory, {"_stext": TEXT, "d__etext": END})
    records = Records(range(IMAGE_END - SEGMENT, IMAGE_END - 13 * PAGE, PAGE))

    def data(machine: object, kernel: Kernel) -> tuple[int, int]:
        start = image_padding._behind_all(kernel, records, DATA, IMAGE_END)  # type: ignore[arg-type]
        return start, IMAGE_END

    monkeypatch.setattr(image_padding, "_data", data)
    return made


def test_code_data_and_journal(place: Kernel) -> None:
    room = image_padding.find(place.memory, place)  # type: ignore[arg-type]
    assert room.code == ((END - SEGMENT + 0x3800, END - JOURNAL),) and not room.code[0][0] % LINE
    assert room.data == (IMAGE_END - 13 * PAGE, IMAGE_END) and room.journal == (END - JOURNAL, END)


def test_little_code_leaves_the_journal_to_the_data(place: Kernel) -> None:
    place.memory.write(END - 0x1000 - 4, b"code")
    room = image_padding.find(place.memory, place)  # type: ignore[arg-type]
    assert room.code == ((END - 0x1000, END),)
    assert room.data == (IMAGE_END - 13 * PAGE, IMAGE_END - 7 * PAGE) and room.journal == (room.data[1], IMAGE_END)


def test_places_do_not_depend_on_what_they_hold(place: Kernel) -> None:
    before = [(each.code, each.data, each.journal) for each in image_padding.places(place.memory, place)]  # type: ignore[arg-type]
    place.memory.write(END - 0x800, b"detour")
    place.memory.write(IMAGE_END - 8, b"journal!")
    after = [(each.code, each.data, each.journal) for each in image_padding.places(place.memory, place)]  # type: ignore[arg-type]
    assert before == after


def test_data_that_hold_something_are_not_taken(place: Kernel) -> None:
    place.memory.write(IMAGE_END - 8, b"x")
    with pytest.raises(OptprobeError, match="holds something"):
        image_padding.find(place.memory, place)  # type: ignore[arg-type]


def test_text_without_a_tail(place: Kernel) -> None:
    place.memory.write(END - 4, b"code")
    with pytest.raises(OptprobeError, match="no code uses"):
        image_padding.find(place.memory, place)  # type: ignore[arg-type]


def test_reserved_pages_without_an_end_may_be_data() -> None:
    made = kernel(Pages(), {"_stext": TEXT})
    with pytest.raises(OptprobeError, match="not known"):
        image_padding._behind_all(made, Records(range(0)), DATA, IMAGE_END)  # type: ignore[arg-type]
    named = kernel(Pages(), {"_stext": TEXT, "d_last": IMAGE_END - 0x6FF0, "d__end": IMAGE_END})
    assert image_padding._behind_all(named, Records(range(0)), DATA, IMAGE_END) == IMAGE_END - 6 * PAGE  # type: ignore[arg-type]
