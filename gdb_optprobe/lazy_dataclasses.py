"""Dataclasses with methods that are made at their first use: compiling them all was half of a start in GDB.

    @dataclass(frozen=True, slots=True)        at import: fields, slots, and a placeholder for each method
    class Site: …                              first Site(…): the placeholder sets the fields, one by one
                                               13th Site(…): `__init__` is compiled, and put in its place

A session makes objects of a third of the 750 classes, most of them of few, and compares, hashes or prints fewer. The
standard library makes the fields, and `__repr__` for a class with the same fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, FrozenInstanceError, dataclass, is_dataclass
from operator import attrgetter
from typing import Any

__all__ = ["while_importing"]

_EAGER = dataclass
_UNDERSTOOD = {"frozen", "slots"}
"""Options of classes that wait; with others a class is made as ever."""
_METHODS = ("__init__", "__repr__", "__eq__", "__hash__")
_NONE = object()
"""In place of an argument that a factory makes."""
_FEW = 12
"""Objects of a class that are made before compiling pays."""


@contextmanager
def while_importing() -> Iterator[None]:
    """Have what is imported within the block find `dataclass` in the standard library as a decorator that waits."""
    dataclasses.dataclass = _dataclass
    try:
        yield
    finally:
        dataclasses.dataclass = _EAGER


def _dataclass(cls: type | None = None, /, **options: bool) -> Any:
    if cls is None:
        return lambda decorated: _dataclass(decorated, **options)
    # With methods of its own for assignment it is an error, which the standard library has.
    if not options.keys() <= _UNDERSTOOD or not cls.__dict__.keys().isdisjoint(("__setattr__", "__delattr__")):
        return _EAGER(**options)(cls)
    return _waiting(cls, **options)


def _waiting(cls: type, frozen: bool = False, slots: bool = False) -> type:
    """Return the class with its fields; each method that it does not define itself waits."""
    own = cls.__dict__
    # Python sets `__hash__` to None where a class defines `__eq__` alone.
    defined = {name for name in _METHODS if name in own and not (name == "__hash__" and own[name] is None)}
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # or the standard library writes one, of a signature that is not there yet
    # One that is derived must be as its bases are: the standard library checks that. They need not be of this module.
    is_derived = any(map(is_dataclass, cls.__bases__))
    made: Any = _EAGER(init=False, repr=False, eq=False, slots=slots, frozen=frozen and is_derived)(cls)
    methods: dict[str, object] = {name: _placeholder(made, name, frozen) for name in _METHODS}
    if not frozen:
        methods["__hash__"] = None
    elif not is_derived:
        made.__dataclass_params__.frozen = True
        methods |= {"__setattr__": _refuse_to_assign, "__delattr__": _refuse_to_delete}
        methods |= _COPIED if slots else {}
    for name in methods.keys() - defined:
        setattr(made, name, methods[name])
    return made  # type: ignore[no-any-return]


def _placeholder(owner: type, name: str, frozen: bool) -> Callable[..., Any]:
    if name == "__init__":
        return _few_inits(owner, frozen)

    def method(self: object, *args: Any) -> Any:
        setattr(owner, name, _named(_made(owner, name), owner, name))
        return getattr(owner, name)(self, *args)

    return method


def _few_inits(owner: type, frozen: bool) -> Callable[..., Any]:
    """Return an `__init__` for the first objects of a class, which then puts the compiled one in its place."""
    fields, left = tuple[dataclasses.Field[Any], ...](), _FEW

    def method(__self: object, /, *args: Any, **keywords: Any) -> None:
        nonlocal fields, left
        fields, left = fields or dataclasses.fields(owner), left - 1
        values = _values(fields, args, keywords) if left >= 0 else None
        if values is None:  # the compiled one tells, too, what is wrong with the arguments
            owner.__init__ = compiled = _named(_init(owner, frozen), owner, "__init__")  # type: ignore[misc]
            compiled(__self, *args, **keywords)
            return
        assign = object.__setattr__ if frozen else setattr  # a base may have its own
        for name, value in values.items():
            assign(__self, name, value)
        if hasattr(owner, "__post_init__"):
            __self.__post_init__()  # type: ignore[attr-defined]

    return _named(method, owner, "__init__")


def _values(
    fields: tuple[dataclasses.Field[Any], ...], args: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the values of fields by these arguments; None where they do not fit."""
    values, used, place = dict[str, Any](), 0, 0
    for each in fields:
        if each.init and not each.kw_only and place < len(args):
            values[each.name] = args[place]
            place += 1
            if each.name in keywords:
                return None
        elif each.init and each.name in keywords:
            values[each.name] = keywords[each.name]
            used += 1
        elif each.default is not MISSING:
            values[each.name] = each.default
        elif each.default_factory is not MISSING:
            values[each.name] = each.default_factory()
        elif each.init:
            return None
    return values if place == len(args) and used == len(keywords) else None


def _named(method: Callable[..., Any], owner: type, name: str) -> Callable[..., Any]:
    method.__qualname__ = f"{owner.__qualname__}.{name}"
    return method


def _made(owner: type, name: str) -> Callable[..., Any]:
    """Return a method that does as the standard library's for a class with the same fields."""
    if name == "__repr__":
        return _repr(owner)
    fields = dataclasses.fields(owner)
    if name == "__eq__":
        values = _getter([each.name for each in fields if each.compare])

        def equal(self: object, other: object) -> Any:
            return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

        return equal
    hashed = _getter([each.name for each in fields if (each.compare if each.hash is None else each.hash)])
    return lambda self: hash(hashed(self))


def _getter(names: list[str]) -> Callable[[object], tuple[Any, ...]]:
    """Return what gets these attributes of an object, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple([getattr(one, name) for name in names])


def _repr(owner: type) -> Callable[..., Any]:
    alike = dataclasses.make_dataclass(
        owner.__name__,
        [(each.name, each.type, _copied(each)) for each in dataclasses.fields(owner)],
        namespace={"__doc__": owner.__name__},  # or it is made of a signature, at length
        init=False,
        eq=False,
    )
    method: Callable[..., Any] = alike.__dict__["__repr__"]
    return method


def _init(owner: type, frozen: bool) -> Callable[..., Any]:
    """Return `__init__`: the library compiles a class with its methods for it, in four times as long."""
    known: dict[str, Any] = {"__set": object.__setattr__, "__none": _NONE}
    positional, named, lines = ["__self"], list[str](), list[str]()
    for each in dataclasses.fields(owner):
        at = each.name
        has_default, has_factory = each.default is not MISSING, each.default_factory is not MISSING
        known[f"__given_{at}"] = each.default_factory if has_factory else each.default
        value = f"__given_{at}() if {at} is __none else {at}" if has_factory else at
        if each.init:
            given = f"{at}=__none" if has_factory else f"{at}=__given_{at}" if has_default else at
            (named if each.kw_only else positional).append(given)
        elif has_factory or has_default:
            value = f"__given_{at}()" if has_factory else f"__given_{at}"
        else:
            continue
        lines.append(f"__set(__self, {at!r}, {value})" if frozen else f"__self.{at} = {value}")
    if hasattr(owner, "__post_init__"):
        lines.append("__self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *named] if named else [])])
    source = "\n ".join([f"def __init__({parameters}):", *(lines or ["pass"])])
    exec(source, known)  # of nothing but the names of our own fields
    method: Callable[..., Any] = known["__init__"]
    return method


def _copied(field: dataclasses.Field[Any]) -> Any:
    names = ("default", "default_factory", "init", "repr", "hash", "compare", "metadata", "kw_only")
    return dataclasses.field(**{name: getattr(field, name) for name in names})


def _is_fixed(record: Any, name: str) -> bool:
    # A class that is derived from a dataclass, and none itself, may have attributes of its own.
    return "__dataclass_fields__" in type(record).__dict__ or name in record.__dataclass_fields__


def _refuse_to_assign(self: object, name: str, value: object) -> None:
    if _is_fixed(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: object, name: str) -> None:
    if _is_fixed(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


@_EAGER(frozen=True, slots=True)
class _Frozen:
    """Has the methods by which an object without a dictionary is copied."""


_COPIED = {name: getattr(_Frozen, name) for name in ("__getstate__", "__setstate__")}
