"""Count the words that prose here does without, in docstrings, comments, messages and docs.

`python -m tests.prose` writes the counts of all files to `prose.txt`, beside this file. The sum may only fall.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWANCES = Path(__file__).with_name("prose.txt")
FOLDERS = ("gdb_optprobe", "qemu", "scripts", "docs", "README.md")

_WORDS = (
    r"who(?:se|m)?|nobody|somebody|anybody",
    r"of\s+(?:ours|theirs)",
    r"(?:is|are|was|were|be)\s+told",
    r"go(?:es)?\s+on",
    r"stands?",
    r"what\s+is\b[^.;:,`]*?\bis",
    # Idioms of this project that no kernel engineer would guess.
    r"he|him|his",
    r"comes?\s+(?:about|upon)|takes?\s+over\s+from|lets?\s+go|leads?\s+(?:astray|off)|sees?\s+to",
    r"owed|told|believe[sd]?|strangers?|becomes?\s+of|(?:stood|standing)|as\s+good\s+as|as\s+(?:it|they)\s+pleases?",
)
WORST = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b", re.IGNORECASE)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\"\w+\"", re.DOTALL | re.MULTILINE)
_CODE_IN_STRING = re.compile(r"\{[^{}]*\}")
# A string of one word is a key, not prose.
_KEY = re.compile(r"""[rbfu]*(['"])\w+\1""", re.IGNORECASE)
_PROSE = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))


@cache
def counts() -> Mapping[str, int]:
    """Return how many of the words each file has, by its path from the root. Files without any are left out."""
    listed = subprocess.run(["git", "ls-files", "-z", *FOLDERS], cwd=ROOT, capture_output=True, check=True).stdout
    found = {name: count(ROOT / name) for name in sorted(listed.decode().split("\0")) if (ROOT / name).is_file()}
    return {name: number for name, number in found.items() if number}


def count(path: Path) -> int:
    """Return how many of the words a file has. Of Python, only comments and strings are read; code of Markdown and
    quoted words, which are keys, are not.
    """
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        return 0
    return len(WORST.findall("\n".join(prose(text)) if _is_python(path, text) else _CODE.sub("…", text)))


def prose(source: str) -> Iterator[str]:
    """Yield the comments and strings of Python source. Comments of adjacent lines are one text."""
    comment: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comment.append(token.string.lstrip("# "))
        elif token.type in _PROSE and not _KEY.fullmatch(token.string):
            yield _CODE_IN_STRING.sub("…", token.string)
        elif token.type != tokenize.NL and comment:
            yield "\n".join(comment)
            comment = []


def _is_python(path: Path, text: str) -> bool:
    return path.suffix == ".py" or text.partition("\n")[0].endswith("python3")


def allowed() -> Mapping[str, int]:
    """Return the allowance of each file."""
    rows = (line.split(maxsplit=1) for line in ALLOWANCES.read_text().splitlines())
    return {name: int(number) for number, name in rows}


def main() -> None:
    """Write the counts as the new allowances, unless there are more of the words than before."""
    found, before = counts(), sum(allowed().values()) if ALLOWANCES.exists() else None
    if before is not None and sum(found.values()) > before:
        sys.exit(f"{sum(found.values())} of these words, where {before} are allowed")
    ALLOWANCES.write_text("".join(f"{number:4} {name}\n" for name, number in found.items()))


if __name__ == "__main__":
    main()
