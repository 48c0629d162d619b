"""GDB exits in good order, whatever was left for its event loop."""

from __future__ import annotations

from tests.commands.in_gdb import gdb

POST = (
    "python from gdb_optprobe.debugger import event_loop as loop; "
    "loop.exit_safely(); loop.post(lambda: print('ran'))"
)


def test_gdb_exits_with_an_event_that_was_never_run() -> None:
    ended = gdb(POST, "echo said", "quit 3")
    assert (ended.status, ended.out, ended.err) == (3, "said", "")

