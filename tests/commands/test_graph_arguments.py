"""What `optprobe graph` takes."""

from __future__ import annotations

import pytest

from gdb_optprobe.commands.graph_arguments import DEPTH, parse_graph
from gdb_optprobe.errors import OptprobeError


def test_a_root_alone() -> None:
    args = parse_graph("vfs_read")
    assert (args.request.root, args.request.depth, args.request.condition) == ("vfs_read", DEPTH, None)
    assert args.shows(None) and args.shows(0) and args.count is None


def test_options_stand_before_and_behind_the_root() -> None:
    text = "-depth 5 vfs_read -also 'ext4_*,read_zero' -not *rcu* -args -retval -proc -tail -count 3 -for 2.5"
    args = parse_graph(text)
    request = args.request
    assert (request.root, request.depth, request.also, request.unwanted) == (
        "vfs_read", 5, ("ext4_*", "read_zero"), ("*rcu*",)
    )  # fmt: skip
    assert request.arguments and request.values and args.threads and args.tails
    assert (args.count, args.seconds) == (3, 2.5)
    assert not args.json and parse_graph("-json vfs_read if count > 1").json


def test_all_behind_if_is_the_condition() -> None:
    args = parse_graph('vfs_read -count 1 if $comm == "dd" && count > 4096')
    assert args.request.condition is not None
    assert args.request.condition.text == '$comm == "dd" && count > 4096'


def test_times_choose_among_calls_that_have_returned() -> None:
    args = parse_graph("vfs_read -min-time 1.5us -max-time 2ms")
    assert [args.shows(took) for took in (1499, 1500, 2_000_000, 2_000_001, None)] == [False, True, True, False, False]
    assert parse_graph("vfs_read -min-time 1s").shows(None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vfs_read -not vfs_write,vfs_read", "vfs_read is the root, and -not leaves it out"),
        ("", "no root"),
        ("-depth 3", "no root"),
        ("vfs_read vfs_write", "'vfs_write' is not expected here"),
        ("vfs_read -depth 0", "-depth takes a number from 1 on"),
        ("vfs_read -depth 65", "is at most 64|too large|at most"),
        ("vfs_read -depth", "-depth needs a value"),
        ("vfs_read -count 1 -last 2", "-count and -last exclude each other"),
        ("vfs_read -json -proc", "-proc and -json exclude each other"),
        ("vfs_read -count -1", "-count takes a number from 1 on"),
        ("vfs_read -min-time 5", "'5' is no time"),
        ("vfs_read -max-time 1h", "'1h' is no time"),
        ("vfs_read -for never", "not a number of seconds"),
        ("vfs_read -nosuch", "no option -nosuch"),
        ("vfs_read if", "an expression is missing after 'if'"),
    ],
)
def test_what_is_wrong_is_told(text: str, why: str) -> None:
    with pytest.raises(OptprobeError, match=why):
        parse_graph(text)


def test_a_glob_that_has_the_root_too_leaves_out_the_others() -> None:
    assert parse_graph("vfs_read -not vfs_*").request.unwanted == ("vfs_*",)
