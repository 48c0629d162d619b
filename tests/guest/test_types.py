"""The guest's types as handlers compute with them."""

from __future__ import annotations

import pytest

from gdb_optprobe.guest.btf import Btf
from gdb_optprobe.guest.types import BtfTypes, own_type
from gdb_optprobe.handlers.ctype import (
    LONG,
    OWN,
    UNSIGNED_INT,
    Array,
    Enum,
    Float,
    Function,
    Incomplete,
    Integer,
    Member,
    Pointer,
    Struct,
    Void,
    describe,
)

from .blobs import BtfWriter

PTR, ARRAY, FWD, TYPEDEF, VOLATILE, CONST, FUNC_PROTO, FLOAT, ENUM = 2, 3, 7, 8, 9, 10, 13, 16, 6


def written() -> tuple[BtfTypes, dict[str, int]]:
    writer = BtfWriter()
    number: dict[str, int] = {}
    number["long"] = writer.integer("long int", 8, signed=True)
    number["u32"] = writer.integer("unsigned int", 4)
    number["char"] = writer.integer("char", 1)
    number["bool"] = writer.add("_Bool", 1, 1, 4 << 24 | 8)
    number["const"] = writer.add("", CONST, number["u32"])
    number["volatile"] = writer.add("", VOLATILE, number["const"])
    number["typedef"] = writer.add("gfp_t", TYPEDEF, number["volatile"])
    number["char[8]"] = writer.add("", ARRAY, 0, number["char"], number["u32"], 8)
    number["node *"] = writer.add("", PTR, number["char[8]"] + 2)
    number["node"] = writer.struct("node", 24, ("next", number["node *"], 0), ("name", number["char[8]"], 64))
    number["bits"] = writer.bitfields("bits", 8, ("low", number["u32"], 0, 3), ("flags", number["u32"], 32, 0))
    number["hidden"] = writer.add("hidden", FWD)
    number["fwd node"] = writer.add("node", FWD)
    number["void *"] = writer.add("", PTR, 0)
    number["prototype"] = writer.add("", FUNC_PROTO, 0)
    number["function *"] = writer.add("", PTR, number["prototype"])
    number["double"] = writer.add("double", FLOAT, 8)
    number["level"] = writer.add("level", ENUM, 4, writer.string("LOW"), -1, vlen=1)
    number["var"] = writer.add("runqueues", 14, number["node"], 1)
    return BtfTypes(Btf(writer.blob())), number


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("long", LONG),
        ("typedef", UNSIGNED_INT),
        ("char", Integer("char", 1, signed=False)),
        ("bool", OWN["_Bool"]),
        ("char[8]", Array(Integer("char", 1, signed=False), 8)),
        ("void *", Pointer(Void())),
        ("function *", Pointer(Function())),
        ("double", Float("double", 8)),
        ("level", Enum("level", 4, signed=True)),
        ("hidden", Incomplete("struct hidden")),
    ],
)
def test_types(name: str, expected: object) -> None:
    types, number = written()
    assert types.type(number[name]) == expected


def test_a_struct_may_point_to_itself() -> None:
    types, number = written()
    node = types.type(number["node"])
    assert isinstance(node, Struct) and (node.name, node.size) == ("node", 24)
    assert list(node.names()) == ["next", "name"]
    following = node.lookup("next")
    assert following is not None and isinstance(following.type, Pointer)
    assert following.type.target == node
    assert node.lookup("nosuch") is None and node.lookup("") is None


def test_what_is_declared_here_and_defined_there_is_defined() -> None:
    types, number = written()
    assert types.type(number["fwd node"]) == types.type(number["node"])


def test_bit_fields() -> None:
    types, number = written()
    bits = types.type(number["bits"])
    assert isinstance(bits, Struct)
    assert bits.lookup("low") == Member("low", 0, UNSIGNED_INT, 0, 3)
    assert bits.lookup("flags") == Member("flags", 4, UNSIGNED_INT)


def test_types_by_name() -> None:
    types, number = written()
    assert describe(types.named("struct", "node") or Void()) == "struct node"
    assert types.named("", "gfp_t") == UNSIGNED_INT
    assert types.named("enum", "level") == Enum("level", 4, signed=True)
    assert types.named("struct", "level") is None
    assert types.plain_char() == Integer("char", 1, signed=False)
    assert types.btf.variable("runqueues") == number["node"]
    assert types.btf.variable("node") is None


def test_own_types_need_no_information() -> None:
    assert own_type("u32") == UNSIGNED_INT
    assert own_type("long") == LONG
    assert own_type("gfp_t") is None
