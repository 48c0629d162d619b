from __future__ import annotations

import pytest

from gdb_optprobe.commands.script_arguments import ScriptArguments, check_parameters, parse_script
from gdb_optprobe.errors import OptprobeError

PROGRAM = 'BEGIN { printf("a b"); }'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tool.bt", ScriptArguments("", "tool.bt")),
        ("tool.bt 5 'two words' -x", ScriptArguments("", "tool.bt", ("5", "two words", "-x"))),
        (f"-e '{PROGRAM}'", ScriptArguments(PROGRAM)),
        (f"-for 1.5 -e '{PROGRAM}' one -json", ScriptArguments(PROGRAM, "", ("one", "-json"), 1.5)),
        ("-f json tool.bt", ScriptArguments("", "tool.bt", json=True)),
        ("-f text tool.bt", ScriptArguments("", "tool.bt")),
        ("-json -unsafe -d tool.bt", ScriptArguments("", "tool.bt", json=True, unsafe=True, dump=True)),
        ("-l 'kprobe:vfs_*'", ScriptArguments("", pattern="kprobe:vfs_*")),
        ("-guest 'ls -l' tool.bt", ScriptArguments("", "tool.bt", guest="ls -l")),
        ("-o out -q -no-warnings tool.bt", ScriptArguments("", "tool.bt", output="out", quiet=True, warns=False)),
        ("-dry-run - one", ScriptArguments("", "-", ("one",), dry=True)),
    ],
)
def test_arguments(text: str, expected: ScriptArguments) -> None:
    assert parse_script(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a script is missing"),
        ("-json", "a script is missing"),
        ("-e", "-e takes a value"),
        ("-nothing tool.bt", "no option '-nothing'"),
        ("-o", "-o takes a value"),
        ("-keep -dry-run tool.bt", "-dry-run and -keep exclude each other"),
        ("-f xml tool.bt", 'Invalid output format "xml"'),
        ("-guest '' tool.bt", "-guest takes a value"),
        ("-for 1 -for 2 tool.bt", "-for is given twice"),
        ("-e 'BEGIN", "a quote is never closed"),
        ("-for never tool.bt", "'never' is not a number of seconds"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptprobeError) as caught:
        parse_script(text)
    assert message in caught.value.message


@pytest.mark.parametrize("parameters", [("-for", "2"), ("1", "-json")])
def test_an_option_behind_a_script_without_arguments_is_refused(parameters: tuple[str, ...]) -> None:
    with pytest.raises(OptprobeError) as caught:
        check_parameters(PROGRAM, parameters)
    assert "is behind the script" in caught.value.message
    assert caught.value.hint == "options come before FILE or -e"


@pytest.mark.parametrize(
    ("text", "parameters"),
    [("BEGIN { print(str($1)); }", ("-for",)), ("BEGIN { print($#); }", ("-json",)), (PROGRAM, ("5", "-x", "--"))],
)
def test_what_is_no_option_and_what_a_script_takes_is_an_argument(text: str, parameters: tuple[str, ...]) -> None:
    check_parameters(text, parameters)
