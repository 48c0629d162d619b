"""The functions that a graph of a root has: by their code, as a listing gives it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gdb_optprobe.guest.text import Function, Place, Whole
from gdb_optprobe.isa.base import Flow, Insn, Pointer
from gdb_optprobe.isa.ppc64le import PPC64LE
from gdb_optprobe.probes.graph import callees
from gdb_optprobe.probes.graph.callees import Callees, Exits, decoded, exits_of

STEP = 0x100
"""From the start of a function to that of the next one; each instruction has one byte."""


class Code:
    """Functions made of lines `name: call a, jmp b+20, call *, …`. Every one but those in `untraced` has a site."""

    def __init__(self, *lines: str, untraced: Collection[str] = ()) -> None:
        bodies = dict(line.split(":") for line in lines)
        self.starts = {name: STEP * number for number, name in enumerate(bodies, 1)}
        self.untraced = {self.starts[name] for name in untraced}
        self.functions = {start: self._function(name, start, bodies[name]) for name, start in self.starts.items()}

    def _function(self, name: str, start: int, body: str) -> Function:
        insns = [self._insn(start + at, text.strip()) for at, text in enumerate(filter(str.strip, body.split(",")))]
        own = {insn.address: insn for insn in insns}
        return Function(name, start, start + STEP, own, lambda: Whole(own, True))

    def _insn(self, address: int, text: str) -> Insn:
        word, _, where = text.partition(" ")
        if where == "*":
            flow = Flow.INDIRECT_CALL if word == "call" else Flow.INDIRECT_JUMP
            return Insn(address, b"\0", text, flow)
        flow = {"call": Flow.CALL, "jmp": Flow.JUMP, "jne": Flow.BRANCH}[word]
        name, _, offset = where.partition("+")
        return Insn(address, b"\0", text, flow, self.starts[name] + int(offset or 0))

    def callees(self, *unwanted: str) -> Callees:
        return Callees(self.place, self.exits, self.traced, lambda name: name not in unwanted)

    def place(self, address: int) -> Place | None:
        found = self.functions.get(address - address % STEP)
        return Place(found.name, found.start, found.end) if found is not None else None

    def exits(self, places: Sequence[Place]) -> Sequence[Exits]:
        return [exits_of(self.functions[place.start].hot, place, self.pointer) for place in places]

    def traced(self, starts: Collection[int]) -> Collection[int]:
        return {*starts} - self.untraced

    @staticmethod
    def pointer(insn: Insn) -> Pointer | None:
        return Pointer(insn.text) if insn.flow in (Flow.INDIRECT_CALL, Flow.INDIRECT_JUMP) else None

    def reached(self, depth: int, *unwanted: str) -> dict[str, int]:
        found = self.callees(*unwanted).reached({self.starts["root"]: 0}, depth)
        assert found.is_whole
        return {self.functions[start].name: at for start, at in found.depths.items()}


def test_callees_are_found_to_the_depth() -> None:
    code = Code("root: call a, call b", "a: call c", "b: call a", "c: call d", "d:")
    assert code.reached(1) == {"a": 1, "b": 1}
    assert code.reached(2) == {"a": 1, "b": 1, "c": 2}
    assert code.reached(9) == {"a": 1, "b": 1, "c": 2, "d": 3}


def test_a_tail_call_is_a_call_and_a_jump_within_is_none() -> None:
    code = Code("root: jne root+1, jmp a", "a: jmp b+4", "b:")
    assert code.reached(5) == {"a": 1, "b": 2}


def test_the_cold_part_belongs_to_its_function() -> None:
    code = Code("root: jne root.cold+3, call a", "root.cold: call b, jmp root+1", "a:", "b:")
    assert code.reached(1) == {"a": 1, "b": 1}


def test_a_jump_into_the_middle_of_another_function_is_no_call() -> None:
    code = Code("root: jmp a+32, call b", "a:", "b:")
    assert code.reached(1) == {"b": 1}


def test_functions_without_a_site_are_passed_through() -> None:
    code = Code("root: call hidden", "hidden: call a", "a: call other", "other: call b", "b:",
                untraced=["hidden", "other"])  # fmt: skip
    assert code.reached(1) == {"a": 1}
    assert code.reached(2) == {"a": 1, "b": 2}


def test_recursion_ends_and_the_root_is_its_own_callee() -> None:
    code = Code("root: call a", "a: call a, call root")
    assert code.reached(9) == {"a": 1, "root": 2}


def test_what_is_not_wanted_is_left_out_with_what_it_calls() -> None:
    code = Code("root: call a, call b", "a: call c", "b:", "c:")
    assert code.reached(9, "a") == {"b": 1}


def test_calls_through_pointers_are_told_with_the_depth_of_their_targets() -> None:
    code = Code("root: call a, call *", "a: jmp *", "b:")
    found = code.callees().reached({code.starts["root"]: 0}, 2)
    assert {pointer.register: depth for pointer, depth in found.pointers.values()} == {"call *": 1, "jmp *": 2}
    assert len(code.callees().reached({code.starts["root"]: 0}, 1).pointers) == 1


def test_from_a_function_that_was_learned_the_depth_goes_on() -> None:
    code = Code("root:", "learned: call a", "a: call b", "b:")
    found = code.callees().reached({code.starts["learned"]: 1}, 2)
    assert found.depths == {code.starts["a"]: 2}


def test_of_several_functions_one_may_be_nearer_to_another_than_it_is_said_to_be() -> None:
    code = Code("root: call hidden", "hidden: call far", "far: call a", "a: call b", "b:", untraced=["hidden"])
    starts = {code.starts["root"]: 0, code.starts["far"]: 3, code.starts["hidden"]: 2}
    found = code.callees().reached(starts, 3)
    assert found.depths == {code.starts[name]: depth for name, depth in (("far", 1), ("a", 2), ("b", 3))}


def test_a_search_without_an_end_is_bounded() -> None:
    many = [f"f{number}: call f{number + 1}" for number in range(callees.MOST + 2)]
    code = Code("root: call f0", *many, f"f{callees.MOST + 2}:")
    found = code.callees().reached({code.starts["root"]: 0}, 1 << 20)
    assert not found.is_whole and len(found.depths) <= callees.MOST + 1


def test_a_jump_by_a_table_leads_nowhere_and_what_is_behind_the_table_is_found() -> None:
    start, call, jump, back = 0x1000, 0x4E800421, 0x4E800420, 0x4E800020
    table = [16, 20, 16]
    words = [jump, *table, 0x60000000, call, 0x48000101, back]
    data = b"".join(word.to_bytes(4, "little") for word in words)
    insns, switches = decoded(data, start, PPC64LE)
    assert [insn.address - start for insn in insns] == [0, 16, 20, 24, 28] and {*switches} == {start}
    insns, switches = decoded(data[16:], start, PPC64LE)
    assert len(insns) == 4 and not switches
