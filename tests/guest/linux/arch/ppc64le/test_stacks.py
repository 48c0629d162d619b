"""Threads and stacks of a kernel without types, by what its code says; a doubt is an error, never silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gdb_optprobe.errors import OptprobeError
from gdb_optprobe.guest.linux.arch.ppc64le import image_padding
from gdb_optprobe.guest.linux.arch.ppc64le.derive import derive, missing
from gdb_optprobe.guest.linux.arch.ppc64le.stacks import Stacks
from gdb_optprobe.guest.linux.arch.ppc64le.threads import Threads
from gdb_optprobe.guest.linux.kernel import Kernel
from gdb_optprobe.guest.machine import Vcpu
from tests.guest.linux.arch.ppc64le.small_guest import (
    BELOW,
    BLR,
    CALL_FLUSH,
    CODE,
    EMERGENCY_STACKS,
    FLUSH_AT,
    HARD,
    IN_PACA,
    INTERRUPT_STACKS,
    LAYOUT,
    NAMES,
    ON_EMERGENCY,
    ON_INTERRUPT,
    ON_STACK,
    PACAS,
    PC,
    PLACES,
    POINTERS,
    PREEMPTS,
    RCU_TASKS,
    RED,
    SAVED_SP,
    SIZE,
    SOFT,
    SP,
    SRR0,
    STACKS,
    TASKS,
    USER,
    accounted,
    addi,
    guest,
    kernel,
    ld,
    number,
    on_interrupt_stack,
    saved,
    seen,
    typed_kernel,
)
from tests.guest.linux.arch.ppc64le.test_arch import BASE, TEXT, toc_setup, words
from tests.guest.linux.fake_kernel import PAGE, Machine

USER_SP, USER_R13 = 0x7FFF_0000, 0x7FFF_8000
IN_USER_MODE = {"r1": USER_SP, "r13": USER_R13, "msr": USER}
VECTOR = {"pc": BASE + 0x4900}


def on_stack(name: str) -> int:
    return ON_STACK + number(name)


def below(name: str) -> int:
    return BELOW + number(name)


KVM_TMP = TEXT + 0x4000


def red(name: str) -> int:
    return RED + number(name)


# --- room beside them ------------------------------------------------------------------------------------------------


def hashed_guest() -> tuple[Machine, Kernel]:
    """Its page tables cannot be looked at; arrays of interrupt stacks have 2048 entries."""
    there = guest()
    end = HARD + 0x4000
    moved = replace(LAYOUT, interrupt_stacks=(HARD + 0x800000, HARD + 0x804000))
    for array, old in zip(moved.interrupt_stacks, (HARD, SOFT), strict=True):
        for at in range(0, 0x4000, PAGE):
            there.pages[(array + at) // PAGE] = bytearray(PAGE)
        there.put(array, there.read(old, 16))
    for at in range(KVM_TMP, KVM_TMP + 0x10000, PAGE):
        there.pages[at // PAGE] = bytearray(PAGE)
    names = {"d_hardirq_ctx": moved.interrupt_stacks[0], "d_softirq_ctx": moved.interrupt_stacks[1]}
    image = {"d___init_begin": end + 0x2000000, "kvm_tmp": KVM_TMP, "kvm_template_end": KVM_TMP + 0x10000}
    return there, typed_kernel(there, {**names, **image, "_sinittext": end, "_einittext": end + 0x1000})


def test_entries_of_cpus_that_the_machine_cannot_have_are_room_for_data() -> None:
    there, known = hashed_guest()
    found = image_padding.find(there, known)
    first = HARD + 0x800000
    assert found.data == (-(-(first + 16) // image_padding.LINE) * image_padding.LINE, first + 0x4000)
    assert found.code == ((KVM_TMP, KVM_TMP + 0x10000 - image_padding.SMALL_JOURNAL),)
    assert found.journal == (found.code[0][1], KVM_TMP + 0x10000)
    there.put_words(found.data[0] + 0x100, 1)
    there.put_words(found.journal[0], 1)
    (again,) = image_padding.places(there, known)
    assert (again.code, again.data, again.journal) == (found.code, found.data, found.journal), "whatever they hold"


def test_what_is_in_use_is_no_room() -> None:
    there, known = hashed_guest()
    there.put_words(HARD + 0x800000 + 0x1000, 1)
    with pytest.raises(image_padding.NoPadding, match="holds something"):
        image_padding.find(there, known)


# --- what the code says ----------------------------------------------------------------------------------------------


def test_everything_is_told_by_the_code() -> None:
    assert derive(kernel(guest())) == LAYOUT


def test_it_is_looked_for_until_it_is_found_and_then_known() -> None:
    there = guest()
    known = kernel(there)
    broken_pid(there)
    assert missing(known) != ""
    there = guest()
    known = kernel(there)
    found = derive(known)
    there.pages.clear()
    assert derive(known) is found and derive(replace(known, structures=None)) is found
    with pytest.raises(OptprobeError):
        derive(kernel(there))


@pytest.mark.parametrize("name", CODE)
def test_without_one_of_the_functions_nothing_is_known(name: str) -> None:
    there = {other: at for other, at in NAMES.items() if other != name}
    assert missing(kernel(guest(), there)) != "" == missing(kernel(guest()))


@pytest.mark.parametrize("name", CODE)
def test_a_function_that_says_something_else(name: str) -> None:
    there = guest()
    there.put(PLACES[name], toc_setup(PLACES[name]) + addi(9, 9, 1) * (len(CODE[name]) // 4))
    assert missing(kernel(there)) != ""


def test_a_function_that_says_two_things() -> None:
    there = guest()
    there.put(PLACES["validate_sp"] + 8, ld(7, 4, LAYOUT.stack + 8) + CODE["validate_sp"])
    assert "validate_sp does not tell" in missing(kernel(there))


def test_a_call_that_the_kernel_patches_in_keeps_what_its_code_keeps() -> None:
    assert CALL_FLUSH in CODE["_switch"] and missing(kernel(guest())) == ""


@pytest.mark.parametrize("code", [
    words(0x38800000, BLR),  # li r4,0
    words(0x4E800421, BLR),  # bctrl
    words(0x4E800420),  # bctr
    words(0x48004001, BLR),  # calls what is elsewhere
    words(0x4C000024),  # rfid
])  # fmt: skip
def test_a_call_that_may_change_what_is_passed_on(code: bytes) -> None:
    there = guest()
    there.put(FLUSH_AT, code)
    assert "_switch does not tell" in missing(kernel(there))


def test_a_kernel_that_preempts() -> None:
    assert "preempts" in missing(kernel(guest(), {**NAMES, "preempt_schedule": NAMES["tail"] + 0x100}))


def test_types_tell_what_code_tells() -> None:
    assert derive(typed_kernel(guest())) == LAYOUT


def test_types_that_no_walk_bears_out() -> None:
    there = guest()
    there.put(TASKS["init"] + LAYOUT.comm, b"init")
    assert "types and symbols tell are those of threads" in missing(typed_kernel(there))


def test_a_kernel_with_types_that_preempts_accounts_for_threads_that_end() -> None:
    there = guest()
    accounted(there, "ending")
    known = typed_kernel(there, PREEMPTS)
    assert missing(known) == ""
    found = Stacks(known, there, ("pc", "lr"), derive(known))
    assert f"thread {number('ending')} (ending)" in {each.owner for each in found.saved()} and not found.hides()
    others = Stacks(typed_kernel(there), there, ("pc", "lr"), LAYOUT)
    assert f"thread {number('ending')} (ending)" not in {each.owner for each in others.saved()} and others.hides()


def test_a_kernel_that_preempts_and_accounts_for_none() -> None:
    names = {"preempt_schedule": PREEMPTS["preempt_schedule"]}
    assert "no account of threads that end" in missing(typed_kernel(guest(), names))
    names["d_tasks_rcu_exit_srcu"] = RCU_TASKS
    assert missing(typed_kernel(guest(), names)) != ""


def broken_name(there: Machine) -> None:
    there.put(TASKS["init"] + LAYOUT.comm, b"init")


def broken_stack(there: Machine) -> None:
    there.put_words(TASKS["thread"] + LAYOUT.stack, STACKS["thread"] + 8)


def broken_saved_sp(there: Machine) -> None:
    there.put_words(TASKS["thread"] + LAYOUT.sp, STACKS["thread"] + SIZE)


def broken_chains(there: Machine) -> None:
    for name in ("init", "thread"):
        there.put_words(SAVED_SP[name], 1)


def broken_pid(there: Machine) -> None:
    there.put(TASKS["thread"] + LAYOUT.pid, number("leader").to_bytes(4, "little"))


def broken_list(there: Machine) -> None:
    there.put_words(TASKS["leader"] + LAYOUT.tasks, TASKS["leader"] + LAYOUT.tasks)


def broken_idle(there: Machine) -> None:
    there.put(TASKS["idle1"] + LAYOUT.comm, b"another\0\0")


def broken_number(there: Machine) -> None:
    there.put_words(PACAS[1] + LAYOUT.number, 7)


def broken_emergency(there: Machine) -> None:
    there.put_words(PACAS[1] + LAYOUT.emergency[2], 0)


@pytest.mark.parametrize(
    "change",
    [
        broken_name,
        broken_stack,
        broken_saved_sp,
        broken_chains,
        broken_pid,
        broken_list,
        broken_idle,
        broken_number,
        broken_emergency,
    ],
)
def test_what_does_not_hold_is_not_believed(change: object) -> None:
    there = guest()
    change(there)  # type: ignore[operator]
    assert "those of threads" in missing(kernel(there))


# --- threads ---------------------------------------------------------------------------------------------------------


def test_every_thread_not_only_every_process() -> None:
    found = Threads(kernel(guest()), LAYOUT).all((TASKS["idle1"],))
    assert {thread.name for thread in found.values()} == {"swapper/0", "leader", "thread", "swapper/1"}
    assert all(thread.address == address for address, thread in found.items())


def after_derivation(there: Machine, change: Mapping[int, int]) -> list[set[int]]:
    """What is seen once `change` was made, by what had been derived before."""
    known = kernel(there)
    stacks = Stacks(known, there, ("pc",), derive(known))
    for at, word in change.items():
        there.put_words(at, word)
    return [set(each.words) for each in stacks.saved()]


@pytest.mark.parametrize("node", [TASKS["leader"] + LAYOUT.tasks, TASKS["thread"] + LAYOUT.thread_node])
def test_a_list_that_runs_in_a_circle(node: int) -> None:
    with pytest.raises(OptprobeError, match="broken"):
        after_derivation(guest(), {node: node})


def test_a_list_that_leads_to_no_thread() -> None:
    with pytest.raises(OptprobeError, match="is no thread"):
        following = TASKS["ending"] + LAYOUT.tasks
        after_derivation(guest(), {TASKS["leader"] + LAYOUT.tasks: following, TASKS["ending"] + LAYOUT.stack: 8})


def test_stack_of_a_dead_thread_that_is_gone() -> None:
    found = set.union(*after_derivation(guest(), {TASKS["thread"] + LAYOUT.stack: 0}))
    assert on_stack("thread") not in found and on_stack("leader") in found


def test_saved_sp_outside_its_stack() -> None:
    with pytest.raises(OptprobeError, match=r"thread 2 .* outside its stack"):
        after_derivation(guest(), {TASKS["thread"] + LAYOUT.sp: 0x1234})


# --- stacks ----------------------------------------------------------------------------------------------------------


def test_sleepers_from_their_saved_sp_and_who_runs_from_below_its_sp() -> None:
    found = seen(guest())
    assert {PC, on_stack("init"), on_stack("thread"), on_stack("leader"), on_stack("idle1")} <= found
    assert {below("leader"), red("leader"), below("idle1"), red("idle1")} <= found
    assert not {below("thread"), below("init"), on_stack("ending"), SRR0} & found


def test_user_mode_leaves_an_empty_stack() -> None:
    found = seen(guest(IN_USER_MODE))
    assert on_stack("leader") not in found and {PC, on_stack("thread")} <= found


def test_user_mode_s_r13_is_not_believed() -> None:
    assert below("idle1") in seen(guest({**IN_USER_MODE, "r13": PACAS[1]}))


@pytest.mark.parametrize("kind", [0, 1])
def test_interrupt_stack_leads_to_the_interrupted_thread(kind: int) -> None:
    there = guest()
    there.state[0]["r1"] = on_interrupt_stack(there, kind, 0, SP["leader"])
    found = seen(there)
    assert {ON_INTERRUPT + 0x10 * kind, below("leader"), on_stack("leader")} <= found
    assert not {ON_INTERRUPT + 0x10 * (1 - kind), ON_INTERRUPT + 0x10 * kind + 1, ON_EMERGENCY, IN_PACA} & found


def test_interrupt_on_the_stack_of_a_soft_one() -> None:
    there = guest()
    soft = on_interrupt_stack(there, 1, 0, SP["leader"])
    there.state[0]["r1"] = on_interrupt_stack(there, 0, 0, soft)
    assert {ON_INTERRUPT, ON_INTERRUPT + 0x10, below("leader")} <= seen(there)


def test_frames_of_an_interrupt_that_lead_nowhere() -> None:
    there = guest()
    sp = there.state[0]["r1"] = on_interrupt_stack(there, 0, 0, SP["leader"])
    there.put_words(sp, sp)
    with pytest.raises(OptprobeError, match="frames of an interrupt on CPU 0 are broken"):
        saved(there)


def test_on_an_emergency_stack_everything_of_that_cpu_is_scanned() -> None:
    found = seen(guest({"r1": EMERGENCY_STACKS[1][0] + 0x3000}))
    mine = {ON_EMERGENCY + 0x10 * kind for kind in (0, 1, 2)} | {ON_INTERRUPT, ON_INTERRUPT + 0x10, IN_PACA}
    assert mine | {below("leader"), red("leader"), on_stack("leader")} <= found
    assert not {word + 1 for word in mine} & found and below("thread") not in found


@pytest.mark.parametrize("sp", [STACKS["ending"] + 0x100, USER_SP, INTERRUPT_STACKS[0][1] + 0x100])
def test_a_stack_that_is_none_of_its_own(sp: int) -> None:
    with pytest.raises(OptprobeError, match=r"CPU 0 is on a stack .* none of its own"):
        saved(guest({"r1": sp}))


def test_a_switch_under_way() -> None:
    """`leader` is current already, and the CPU still on the stack of `thread`, whose SP was saved."""
    found = seen(guest({"r1": SAVED_SP["thread"]}))
    assert {on_stack("thread"), on_stack("leader")} <= found and below("leader") not in found


def test_a_stack_of_another_thread_s_is_no_switch() -> None:
    with pytest.raises(OptprobeError, match="none of its own"):
        saved(guest({"r1": SP["thread"]}))


def test_a_paca_at_the_end_of_memory() -> None:
    there = guest({"r1": EMERGENCY_STACKS[0][0] + 0x3000})
    del there.pages[PACAS[0] // PAGE + 1]
    assert IN_PACA in seen(there)


def test_entry_from_the_kernel_asks_for_srr0() -> None:
    found = seen(guest(VECTOR))
    assert {SRR0, IN_PACA, below("leader")} <= found and IN_PACA + 1 not in found


def test_the_frame_that_was_left_just_now() -> None:
    there = guest(VECTOR)
    there.put_words(SP["leader"] - 0x300, 0xABCD0)
    assert 0xABCD0 in seen(there) and 0xABCD0 not in _without_entry(there)


def _without_entry(there: Machine) -> set[int]:
    there.state[0]["pc"] = PC
    return seen(there)


class OneVcpuTold(Machine):
    """QEMU 7.2 tells special registers of the first vCPU alone, and GDB has an error of its own for that."""

    def registers(self, vcpu: Vcpu, names: Sequence[str]) -> dict[str, int]:
        if vcpu.number and "srr0" in names:
            raise RuntimeError("remote failure reply 'E14'")
        return super().registers(vcpu, names)


@pytest.mark.parametrize("change", [VECTOR, {"msr": 0}])
def test_srr0_that_is_not_told(change: Mapping[str, int]) -> None:
    there = guest(None, change)
    untold = OneVcpuTold(*there.state)
    untold.pages = there.pages
    with pytest.raises(OptprobeError, match=r"vCPU 1 cannot be read: .*E14"):
        saved(untold)
    untold.state.reverse()
    assert SRR0 in seen(untold)


@pytest.mark.parametrize("early", [{"r13": USER_R13}, {"r13": PACAS[0]}])
def test_entry_from_user_mode(early: Mapping[str, int]) -> None:
    found = seen(guest({**VECTOR, "r1": USER_SP, **early}))
    assert on_stack("leader") not in found and {on_stack("thread"), below("idle1")} <= found


# --- CPUs ------------------------------------------------------------------------------------------------------------


def test_a_cpu_that_never_came_up() -> None:
    there = guest(second={"msr": 0, "r1": 0, "r13": 0})
    there.put_words(LAYOUT.online, 0b01)
    there.put_words(LAYOUT.online_count, 1)
    there.put_words(PACAS[1] + LAYOUT.current, 0)
    found = seen(there)
    assert {below("leader"), on_stack("idle1")} <= found and below("idle1") not in found


def test_a_cpu_that_runs_no_thread_yet() -> None:
    with pytest.raises(OptprobeError, match="CPU 1 runs no thread"):
        after_derivation(guest(), {PACAS[1] + LAYOUT.current: 0})


def test_a_cpu_on_no_vcpu() -> None:
    there = guest()
    there.state.pop()
    with pytest.raises(OptprobeError, match="1 CPUs are not in the kernel, but 0 vCPUs are in user mode"):
        saved(there)


def test_two_vcpus_with_one_paca() -> None:
    with pytest.raises(OptprobeError, match="two vCPUs seem to be CPU 0"):
        saved(guest(second={"r13": PACAS[0]}))


def test_a_cpu_that_is_counted_and_not_found() -> None:
    with pytest.raises(OptprobeError, match="not every CPU's paca"):
        after_derivation(guest(), {POINTERS + 8: 0})


def test_whose_stacks_they_are() -> None:
    """From where on each is in use, to where it ends; on a CPU with what a leaf function may use below it."""
    found = {one.stack.name: one for one in saved(guest()) if one.stack is not None and one.stack.pid is not None}
    assert {name: one.stack and one.stack.pid for name, one in found.items()} == {
        "swapper/0": 0,
        "swapper/1": 0,
        "leader": number("leader"),
        "thread": number("thread"),
    }
    for name, start in ("thread", SAVED_SP["thread"]), ("leader", SP["leader"] - 288):
        assert found[name].address == start
        stack = found[name].stack
        assert stack is not None and (stack.start, stack.end) == (STACKS[name], STACKS[name] + SIZE)
