"""The text of a program that leaves the process: its checksum is in guest memory, beside what the program counts.

A GDB that takes a probe over compiles what was typed again, and uses the counters that are there only where the program
has the same text. So classes and fields may be renamed, what this file writes for them may not change. The text says
all that a hit does, and with which memory.

    Binary(op=<Op.ADD: '+'>, left=Constant(value=1), right=Register(name='rdi'), bits=64, signed=False)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from gdb_optprobe.handlers import ir as p
from gdb_optprobe.handlers.return_scope import EntryProgram
from gdb_optprobe.maps import aggregate as a

# By class: what is written for it, and its fields in order. One that is renamed will need both of its names here.
_FIELDS: Mapping[type, tuple[str, tuple[str, ...]]] = {
    p.Constant: ("Constant", ("value",)),
    p.Register: ("Register", ("name",)),
    p.PerCpuBase: ("PerCpuBase", ()),
    p.Clock: ("Clock", ()),
    p.Load: ("Load", ("address", "size", "signed", "mapped")),
    p.Unary: ("Unary", ("op", "value", "bits", "signed")),
    p.Binary: ("Binary", ("op", "left", "right", "bits", "signed")),
    p.Convert: ("Convert", ("value", "bits", "signed")),
    p.And: ("And", ("left", "right")),
    p.Or: ("Or", ("left", "right")),
    p.Choose: ("Choose", ("condition", "yes", "no")),
    p.StringLoad: ("Text", ("address", "size", "mapped", "whole")),
    p.StringEquals: ("TextEquals", ("address", "literal", "mapped")),
    p.Variable: ("Variable", ("name",)),
    p.Buffer: ("Buffer", ("name", "size")),
    p.Slice: ("Slice", ("buffer", "offset", "size")),
    p.Literal: ("Literal", ("data",)),
    p.Part: ("Part", ("buffer", "offset", "size", "signed", "index")),
    p.SameText: ("SameText", ("left", "right", "most")),
    p.ContainsText: ("ContainsText", ("text", "needle")),
    p.BytesLoad: ("Bytes", ("address", "size", "mapped", "length", "text")),
    p.Column: ("Column", ("label", "form", "size")),
    p.Cell: ("Cell", ("name", "aggregate")),
    p.HashMap: ("Table", ("name", "columns", "aggregate")),
    p.Map: ("Map", ("name", "columns", "value", "most")),
    p.Records: ("Records", ("name", "columns", "format", "stack", "tried", "kind")),
    p.Update: ("Update", ("target", "value", "by")),
    p.Emit: ("Emit", ("target", "fields")),
    p.Put: ("Put", ("address", "value")),
    p.Stop: ("Stop", ()),
    p.Assign: ("Assign", ("variable", "value")),
    p.Copy: ("Copy", ("into", "source")),
    p.Cut: ("Cut", ("slice", "length")),
    p.If: ("If", ("condition", "then", "otherwise")),
    p.Loop: ("Loop", ("body", "step", "most")),
    p.Break: ("Break", ()),
    p.Continue: ("Continue", ()),
    p.Return: ("Return", ()),
    p.Get: ("Get", ("map", "by", "into")),
    p.Set: ("Set", ("map", "by", "value")),
    p.Modify: ("Modify", ("map", "by", "op", "value", "old", "new")),
    p.Has: ("Has", ("map", "by", "into")),
    p.Delete: ("Delete", ("map", "by", "had")),
    p.Length: ("Length", ("map", "into")),
    p.Each: ("Each", ("map", "key", "value", "body")),
    p.Program: ("Program", ("condition", "actions", "quiet")),
    a.Count: ("Count", ()),
    a.Sum: ("Sum", ("signed",)),
    a.Least: ("Least", ("signed",)),
    a.Greatest: ("Greatest", ("signed",)),
    a.Average: ("Average", ("signed",)),
    a.Stats: ("Stats", ("signed",)),
    a.Powers: ("Powers", ("signed",)),
    a.LogLinear: ("LogLinear", ("bits", "signed")),
    a.Linear: ("Linear", ("low", "high", "step", "signed")),
    EntryProgram: ("Entry", ("condition", "words", "names", "actions")),
}
# Fields that were added later: not written where they have the value that all had before.
_ADDED: Mapping[tuple[type, str], object] = {(p.Program, "quiet"): False, (p.Records, "kind"): None}
_ALWAYS = object()
_MEMBERS: Mapping[Enum, str] = {
    p.UnaryOp.NEGATE: "<UnaryOp.NEGATE: '-'>",
    p.UnaryOp.INVERT: "<UnaryOp.INVERT: '~'>",
    p.Op.ADD: "<Op.ADD: '+'>",
    p.Op.SUB: "<Op.SUB: '-'>",
    p.Op.MUL: "<Op.MUL: '*'>",
    p.Op.DIV: "<Op.DIV: '/'>",
    p.Op.MOD: "<Op.MOD: '%'>",
    p.Op.SHL: "<Op.SHL: '<<'>",
    p.Op.SHR: "<Op.SHR: '>>'>",
    p.Op.AND: "<Op.AND: '&'>",
    p.Op.OR: "<Op.OR: '|'>",
    p.Op.XOR: "<Op.XOR: '^'>",
    p.Op.EQ: "<Op.EQ: '=='>",
    p.Op.NE: "<Op.NE: '!='>",
    p.Op.LT: "<Op.LT: '<'>",
    p.Op.LE: "<Op.LE: '<='>",
    p.Op.GT: "<Op.GT: '>'>",
    p.Op.GE: "<Op.GE: '>='>",
    p.Op.UDIV: "<Op.UDIV: 'u/'>",
    p.Op.UMOD: "<Op.UMOD: 'u%'>",
    p.Op.LSHL: "<Op.LSHL: 'u<<'>",
    p.Op.LSHR: "<Op.LSHR: 'u>>'>",
    p.Op.UMULH: "<Op.UMULH: 'u*>>64'>",
    p.Form.SIGNED: "<Form.SIGNED: 'signed'>",
    p.Form.UNSIGNED: "<Form.UNSIGNED: 'unsigned'>",
    p.Form.POINTER: "<Form.POINTER: 'pointer'>",
    p.Form.TEXT: "<Form.TEXT: 'text'>",
}


def encode(value: object) -> str:
    """Return the text of a program, of a part of one, or of a tuple of such. Raises TypeError for anything else."""
    if isinstance(value, tuple):
        parts = ", ".join(map(encode, value))
        return f"({parts},)" if len(value) == 1 else f"({parts})"
    if isinstance(value, Enum):
        return _MEMBERS[value]
    if value is None or isinstance(value, bool | int | str | bytes):
        return repr(value)
    if type(value) not in _FIELDS:
        raise TypeError(f"{type(value).__name__} has no text that leaves the process")
    name, fields = _FIELDS[type(value)]
    known = ((field, getattr(value, field)) for field in fields)
    written = [(field, each) for field, each in known if _ADDED.get((type(value), field), _ALWAYS) != each]
    return f"{name}({', '.join(f'{field}={encode(each)}' for field, each in written)})"
