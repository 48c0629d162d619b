"""Trees as text, every operation in brackets, for tests to compare."""

from __future__ import annotations

from gdb_optprobe.handlers.syntax import (
    Binary,
    Cast,
    Character,
    Conditional,
    Dollar,
    Expression,
    Index,
    Member,
    Name,
    Number,
    PerCpu,
    SizeOf,
    Str,
    String,
    TypeName,
    Unary,
)


def shown(node: Expression | TypeName) -> str:
    match node:
        case Number(_, value, suffix):
            return f"{value}{suffix}"
        case Character(_, value):
            return f"c{value}"
        case String(_, data):
            return repr(data)[1:]
        case Name(_, name):
            return name
        case Dollar(_, name):
            return f"${name}"
        case Str(_, pointer):
            return f"str[{shown(pointer)}]"
        case PerCpu(_, thing):
            return f"percpu[{shown(thing)}]"
        case Unary(_, op, value):
            return f"[{op}{shown(value)}]"
        case Binary(_, op, left, right):
            return f"[{shown(left)}{op}{shown(right)}]"
        case Conditional(_, condition, yes, no):
            return f"[{shown(condition)}?{shown(yes)}:{shown(no)}]"
        case Member(_, thing, name, arrow):
            return f"[{shown(thing)}{'->' if arrow else '.'}{name.text}]"
        case Index(_, array, index):
            return f"[{shown(array)}@{shown(index)}]"
        case Cast(_, type_, value):
            return f"[<{shown(type_)}>{shown(value)}]"
        case SizeOf(_, thing):
            return f"sizeof[{shown(thing)}]"
        case TypeName(_, keyword, name, pointers):
            return f"{keyword} {name}".strip() + "*" * pointers
