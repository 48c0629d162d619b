"""How C's own types are spelled: `long unsigned int` is `unsigned long`. ISO C17 6.7.2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdb_optprobe.handlers.source import Fragment, fault

TAGGED = ("struct", "union", "enum")
QUALIFIERS = ("const", "volatile", "restrict", "__restrict", "__const", "__volatile__")

_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "void": ("void",),
    "_Bool": ("_Bool",),
    "char": ("char",),
    "signed char": ("signed char",),
    "unsigned char": ("unsigned char",),
    "short": ("short", "signed short", "short int", "signed short int"),
    "unsigned short": ("unsigned short", "unsigned short int"),
    "int": ("int", "signed", "signed int"),
    "unsigned int": ("unsigned", "unsigned int"),
    "long": ("long", "signed long", "long int", "signed long int"),
    "unsigned long": ("unsigned long", "unsigned long int"),
    "long long": ("long long", "signed long long", "long long int", "signed long long int"),
    "unsigned long long": ("unsigned long long", "unsigned long long int"),
    "__int128": ("__int128", "signed __int128"),
    "unsigned __int128": ("unsigned __int128",),
    "float": ("float",),
    "double": ("double",),
    "long double": ("long double",),
}
_BY_WORDS = {tuple(sorted(way.split())): name for name, ways in _SPELLINGS.items() for way in ways}
WORDS = frozenset(word for words in _BY_WORDS for word in words)


def one_spelling(name: str) -> str:
    """Of a type of C's own, however it is spelled; any other name as it is."""
    return _BY_WORDS.get(tuple(sorted(name.split())), name)


def spelling(words: Sequence[str], where: Fragment) -> str:
    """The one spelling of a type that these words name in any order. Raises OptprobeError where they name none."""
    found = _BY_WORDS.get(tuple(sorted(words)))
    if found is None:
        raise fault(f"'{' '.join(words)}' is no type", where, "as in C: unsigned int, long, unsigned char, …")
    return found
