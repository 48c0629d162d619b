"""What waits with its methods is the dataclass that the standard library makes at once."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gdb_optprobe import lazy_dataclasses
from gdb_optprobe.lazy_dataclasses import while_importing

SOURCE = '''
from dataclasses import dataclass, field, replace

@dataclass(frozen=True, slots=True)
class Point:
    """A place."""

    x: int
    y: int = 0
    name: str = field(default="", compare=False, repr=False)

@dataclass(frozen=True, slots=True)
class Named(Point):
    tags: tuple[str, ...] = ()
    late: int = field(default=7, kw_only=True)

    def __repr__(self) -> str:
        return "named"

@dataclass(frozen=True)
class Same:
    x: int

    def __eq__(self, other: object) -> bool:
        return True

@dataclass(frozen=True)
class Hashed:
    x: int

    def __hash__(self) -> int:
        return 5

@dataclass
class Open:
    values: list[int] = field(default_factory=list)
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = sum(self.values)

@dataclass(slots=True)
class Slotted:
    x: int

class Doubling:
    def __setattr__(self, name: str, value: int) -> None:
        object.__setattr__(self, name, 2 * value)

@dataclass
class Doubled(Doubling):
    x: int
    y: int = 3

@dataclass(frozen=True, slots=True)
class Awkward:
    """Has names that what makes it could have, too."""

    self: int
    set: int = 1
    none: list[int] = field(default_factory=lambda: [2])
    fixed: int = field(default=3, init=False)
    made: list[int] = field(default_factory=lambda: [4], init=False)
    late: list[int] = field(default_factory=lambda: [5], kw_only=True)

@dataclass
class Empty:
    """Has no field."""

@dataclass(frozen=True, order=True)
class Ordered:
    x: int

@dataclass(frozen=True)
class Base:
    x: int

class Derived(Base):
    def __init__(self, x: int) -> None:
        super().__init__(x)
        self.more = x + 1
'''


def made() -> SimpleNamespace:
    found: dict[str, Any] = {"__name__": __name__}
    exec(SOURCE, found)
    return SimpleNamespace(**found)


def waiting() -> SimpleNamespace:
    with while_importing():
        return made()


def matched(point: Any, known: Any) -> object:
    match point:
        case known.Point(x, y):
            return x, y
    return None


def outcome(act: Callable[[Any], object], known: Any) -> object:
    try:
        return act(known)
    except Exception as error:
        return type(error), str(error)


ACTS: Mapping[str, Callable[[Any], object]] = {
    "made": lambda k: (k.Point(1).x, k.Point(1, 2).y, k.Point(x=1, name="a").name),
    "of awkward names": lambda k: (repr(k.Awkward(0)), repr(k.Awkward(0, 7, [8], late=[9]))),
    "each with a list of its own": lambda k: k.Awkward(0).none is k.Awkward(0).none or k.Awkward(0).late,
    "empty": lambda k: (repr(k.Empty()), k.Empty() == k.Empty()),
    "empty, with an argument": lambda k: k.Empty(1),
    "lacks an argument by its name": lambda k: k.Awkward(0, late=None, other=1),
    "lacks an argument": lambda k: k.Point(),
    "has one too many": lambda k: k.Point(1, 2, "", 4),
    "has one that is not known": lambda k: k.Point(1, z=3),
    "printed": lambda k: (repr(k.Point(1, 2, "a")), repr(k.Named(1)), repr(k.Open([1])), repr(k.Slotted(2))),
    "compared": lambda k: (k.Point(1) == k.Point(1, 0, "a"), k.Point(1) == k.Point(2), k.Point(1) == 1),
    "compared with a derived one": lambda k: (k.Point(1) == k.Named(1), k.Named(1) != k.Named(1, late=8)),
    "of its own equality": lambda k: (k.Same(1) == k.Same(2), k.Same(1) == 3),
    "hashed": lambda k: (hash(k.Point(1, 2, "a")), hash(k.Named(1, tags=("a",))), hash(k.Same(4)), hash(k.Hashed(1))),
    "a key": lambda k: {k.Point(1): 1, k.Point(1, 0, "a"): 2}[k.Point(1)],
    "not hashable": lambda k: hash(k.Open()),
    "not hashable, with slots": lambda k: hash(k.Slotted(1)),
    "assigned": lambda k: setattr(k.Point(1), "x", 2),
    "given an attribute": lambda k: setattr(k.Base(1), "other", 2),
    "deleted": lambda k: delattr(k.Named(1), "tags"),
    "derived": lambda k: k.Derived(1).__setattr__("x", 3),
    "derived, with an attribute": lambda k: (k.Derived(1).more, k.Derived(1).__setattr__("more", 3)),
    "open": lambda k: (k.Slotted(1).__setattr__("x", 2), k.Open([1, 2]).total, k.Open().values),
    "assigned as a base does": lambda k: (k.Doubled(1).x, k.Doubled(1).y, k.Doubled(1, y=2).y),
    "not of its slots": lambda k: setattr(k.Slotted(1), "other", 2),
    "replaced": lambda k: repr(dataclasses.replace(k.Point(1, 2), y=3)),
    "replaced what is not given": lambda k: dataclasses.replace(k.Open(), total=3),
    "copied": lambda k: (copy.copy(k.Point(1, 2, "a")).name, copy.deepcopy(k.Named(1, tags=("a",))).tags),
    "as a mapping": lambda k: (dataclasses.asdict(k.Named(1)), dataclasses.astuple(k.Open([1]))),
    "its fields": lambda k: [(f.name, f.type, f.init, f.kw_only) for f in dataclasses.fields(k.Named)],
    "matched": lambda k: (matched(k.Point(1, 2), k), k.Named.__match_args__),
    "ordered": lambda k: k.Ordered(1) < k.Ordered(2),
    "described": lambda k: (k.Point.__doc__, k.Point.__slots__, k.Named.__slots__),
    "named": lambda k: (k.Point(1), k.Point.__init__.__qualname__)[1],
}


@pytest.mark.parametrize("few", [0, 2, lazy_dataclasses._FEW])
@pytest.mark.parametrize("act", ACTS)
def test_it_does_what_any_dataclass_does(act: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_dataclasses, "_FEW", few)
    assert outcome(ACTS[act], waiting()) == outcome(ACTS[act], made())


def test_a_method_is_made_when_it_is_first_called() -> None:
    known = waiting()
    before = known.Point.__eq__, known.Point.__hash__
    assert known.Point(1) == known.Point(1) and known.Point.__eq__ is not before[0]
    assert known.Point.__hash__ is before[1]


def test_many_objects_of_a_class_are_made_by_compiled_code() -> None:
    known = waiting()
    before = known.Point.__init__
    points = [known.Point(at) for at in range(lazy_dataclasses._FEW)]
    assert known.Point.__init__ is before
    points.append(known.Point(len(points)))
    assert known.Point.__init__ is not before
    assert [point.x for point in points] == [*range(len(points))]


def test_the_standard_library_is_as_it_was() -> None:
    was = dataclasses.dataclass
    with pytest.raises(ZeroDivisionError), while_importing():
        assert dataclasses.dataclass is not was
        raise ZeroDivisionError
    assert dataclasses.dataclass is was


OWN = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Own:\n    def __setattr__(self, *_): pass\n"


def test_a_frozen_class_that_assigns_is_refused() -> None:
    with pytest.raises(TypeError, match="overwrite attribute"), while_importing():
        exec(OWN, {"__name__": __name__})


@pytest.mark.parametrize("frozen", [True, False])
def test_one_may_be_derived_from_one_of_the_other_kind(frozen: bool) -> None:
    with while_importing():
        first = dataclasses.dataclass(frozen=frozen)(type("First", (), {"__annotations__": {"x": "int"}}))
    second = dataclasses.dataclass(frozen=frozen)(type("Second", (first,), {"__annotations__": {"y": "int"}}))
    with while_importing():
        third = dataclasses.dataclass(frozen=frozen)(type("Third", (second,), {"__annotations__": {"z": "int"}}))
        with pytest.raises(TypeError, match="cannot inherit"):
            dataclasses.dataclass(frozen=not frozen)(type("Other", (second,), {}))
    assert repr(third(1, 2, 3)) == "Third(x=1, y=2, z=3)"
    with pytest.raises(TypeError, match="cannot inherit"):
        dataclasses.dataclass(frozen=not frozen)(type("Other", (first,), {}))
