"""A call graph shows the tree that the guest's own function_graph shows, and leaves nothing in the guest."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from qemu.arming import Arming
from qemu.cache import say
from qemu.debugger import Debugger
from qemu.graphs import Graphs
from qemu.guest import Guest, Options
from qemu.rsp_proxy import RspProxy
from tests.booted.batch import batch
from tests.booted.conftest import EVERY_ISA, FULL, Boot, on_every_isa
from tests.booted.test_exact import TRACING
from tests.docs.validate import check

READS = 20
DD = f"dd if=/dev/zero of=/dev/null bs=1 count={READS} 2>/dev/null"
AGAIN = "boots four guests more: OPTPROBE_FULL=1"
MARK = "@@"
MARKS = "==========> |", "<========== |"
_LINE = re.compile(r" +\d+\) .{14}\|  (?P<indent> *)(?P<what>\S.*)")

_ENDED = re.compile(r" +\d+\) . (\d+(?:\.\d+)?) us +\|  (?:\}|rw_verify_area\(\);)")


def trees(lines: Sequence[str], root: str) -> Iterator[str]:
    """Yield the whole trees of a root in function_graph's lines, without times; none with an interrupt in it."""
    found: list[str] = []
    for line in lines:
        matched = _LINE.match(line)
        if matched is None:
            found = []  # another thread, or an interrupt
            continue
        indent, what = matched["indent"], matched["what"]
        if not indent and what.startswith(f"{root}("):
            found = []
        found.append(indent + what)
        if not indent and what == "}" and found[0] == f"{root}() {{":
            yield "\n".join(found)
            found = []


def usual(lines: Sequence[str], root: str) -> str:
    """Return the tree that most calls of a root have."""
    ((tree, count),) = Counter(trees(lines, root)).most_common(1)
    assert count > READS // 2, lines
    return tree


def exported(path: Path) -> tuple[list[str], list[int]]:
    """Return the calls of a file of speedscope's as function_graph's lines, and how long outermost ones took."""
    found: dict[str, Any] = json.loads(path.read_text())
    names, lines, took = [one["name"] for one in found["shared"]["frames"]], list[str](), list[int]()
    for profile in found["profiles"]:
        begun: list[int] = []
        for event in profile["events"]:
            name, at = f"{names[event['frame']]}()", event["at"]
            if event["type"] == "O":
                lines.append(f"{'  ' * len(begun)}{name} {{")
                begun.append(at)
                continue
            begin = begun.pop()
            is_leaf = lines[-1] == f"{'  ' * len(begun)}{name} {{"
            if is_leaf:
                lines.pop()
            lines.append(f"{'  ' * len(begun)}{f'{name};' if is_leaf else '}'}")
            took += [] if begun else [at - begin]
    return [f" 0) {' ' * 14}|  {line}" for line in lines], took


@on_every_isa
def test_the_tree_is_that_of_the_guests_own_tracer(each_linux: Guest, tmp_path: Path) -> None:
    """Calls through pointers are learned by the first graph. A root that never returns stays open."""
    read = f"optprobe graph rw_verify_area -depth 4 -guest '{DD}' if $comm == \"dd\""
    marks = [f"echo {MARK}\\n"] * 4
    death = "optprobe graph do_exit -depth 1 -count 1 -guest 'true'"
    last = [f"optprobe export {word} {tmp_path}/{word} -last" for word in ("speedscope", "csv")]
    told = f"optprobe graph rw_verify_area -depth 1 -count 2 -args -retval -json -guest '{DD}'"
    script = [read, marks[0], read, last[0], marks[1], death, last[1], marks[2], told, marks[3]]
    script += ["optprobe list", "optprobe check"]
    finished = batch(each_linux, script)
    assert finished.status == 0, finished.output
    learning, ours, died, lines, end = (part.splitlines() for part in finished.output.split(f"{MARK}\n"))
    each_linux.check(
        f"mount -t tracefs t {TRACING} 2>/dev/null; cd {TRACING}; echo rw_verify_area > set_graph_function; "
        "echo function_graph > current_tracer; echo nofuncgraph-proc > trace_options; "
        f"{DD}; echo 0 > tracing_on; cat trace > /tmp/graph; "
        "echo nop > current_tracer; echo > set_graph_function; echo > trace; echo 1 > tracing_on"
    )
    theirs = each_linux.check("cat /tmp/graph; rm /tmp/graph").splitlines()
    assert any("called through pointers" in line for line in learning)
    wanted = usual(theirs, "rw_verify_area")
    assert "apparmor_file_permission() {" in wanted  # it is behind a pointer
    assert usual(ours, "rw_verify_area") == wanted
    assert ours[ours.index("# tracer: function_graph") :][:4] == theirs[:4]
    kept, took = exported(tmp_path / "speedscope")
    assert usual(kept, "rw_verify_area") == wanted
    printed = [float(found[1]) * 1000 for line in ours if (found := _ENDED.fullmatch(line))]
    assert len(printed) > READS // 2
    # Either is rounded to a nanosecond, or to the digits that are printed.
    assert all(abs(ns - shown) < max(3, ns / 1e5) for ns, shown in zip(took, printed, strict=True))
    opened = next(line for line in died if "do_exit() {" in line)
    assert opened.endswith("|  do_exit() {") and not any(line.endswith("|  }") for line in died)
    assert any("exit_signals();" in line for line in died)
    assert any(" had not returned: in the file they end" in line for line in died)
    assert ",do_exit," in (tmp_path / "csv").read_text()
    json_lines = [line for line in lines if line.startswith("{")]
    check("".join(f"{line}\n" for line in json_lines), "graph", "graph_total")
    first, second, total = map(json.loads, json_lines)
    assert {first["function"], second["function"], total["function"]} == {"rw_verify_area"} and total["shown"] == 2
    assert first["begin"] + first["nanoseconds"] <= second["begin"] and first["result"] == 0
    for inner in first["calls"]:
        assert first["begin"] <= inner["begin"] <= first["begin"] + first["nanoseconds"] - inner["nanoseconds"]
    assert end[:2] == ["No probes.", "The guest's memory holds what we wrote."]


def test_interrupts_on_the_thread_s_stack_are_marked(ppc_guest: Guest) -> None:
    """One call takes as long as many ticks of the timer. Linux's own tracer marks none of them."""
    read = "dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null"
    finished = batch(ppc_guest, [f"optprobe graph vfs_read -depth 1 -guest '{read}' if $arg3 == 64 << 20"])
    assert finished.status == 0, finished.output
    lines = [line.partition(") ")[2] for line in finished.output.splitlines()]
    begins, ends = ([at for at, line in enumerate(lines) if line.strip() == mark] for mark in MARKS)
    assert begins and len(begins) == len(ends), finished.output
    for begin, end in zip(begins, ends, strict=True):
        assert lines[begin + 1].endswith("|    irq_enter();") and lines[end - 1].endswith("|    irq_exit();"), lines
    first, last = (sum(line.endswith(f"|    {name}();") for line in lines) for name in ("irq_enter", "irq_exit"))
    assert first == last >= len(begins), "more where an interrupt comes in another one"


@pytest.mark.parametrize(
    "arch",
    [
        "x86_64",
        pytest.param("ppc64le", marks=pytest.mark.skipif(not FULL, reason=AGAIN)),
        pytest.param("aarch64", marks=pytest.mark.skipif(not EVERY_ISA, reason=AGAIN)),
    ],
)
def test_what_it_takes_to_arm_a_graph_is_printed(arch: str, tmp_path: Path) -> None:
    """The same probes are put in each time; later in a boot by fewer packets."""
    lines = Arming(Options(arch=arch), tmp_path, say, root="do_exit", depth=2, is_timed=FULL).run()
    kinds = [(kernel, graph) for kernel in ("new", "known") for graph in ("first", "again")]
    assert [(line.kernel, line.graph) for line in lines] == kinds
    assert len({(line.functions, line.sites) for line in lines}) == 1
    assert lines[0].functions > 100 and lines[0].sites > 10
    new, new_again, known, again = (line.packets for line in lines)
    assert new > new_again > 0 and known > again > 0 and all(line.seconds > 0 for line in lines)


@pytest.mark.skipif(not FULL, reason="boots guests of its own, which count instructions: OPTPROBE_FULL=1")
@pytest.mark.parametrize("arch", ["x86_64", "ppc64le", "aarch64"])
def test_more_trees_are_those_of_the_guests_own_tracer(boot: Boot, arch: str) -> None:
    """A call costs at most a quarter. A thread that ends gives its place back before it leaves its CPU for good."""
    guest = boot(arch=arch, icount="shift=0,sleep=off", append="mitigations=off", extra=())
    with RspProxy(guest.gdb_socket) as proxy, Debugger(proxy.path) as debugger:
        rows = {row.root: row for row in Graphs(guest, debugger, proxy, say).run()}
    last = rows.pop("do_exit")
    for row in rows.values():
        assert row.ours is not None and row.theirs is not None
        assert not row.difference and 4 * row.ours <= row.theirs, row
    _, _, *changed = last.difference
    place = changed.index("   do_task_dead() {")
    assert all(line.startswith("-    ") for line in changed[place + 1 :]), last
    assert not any(line.startswith(("-", "+")) for line in changed[:place]), last
    assert guest.problems() == []
