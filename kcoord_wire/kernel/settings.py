"""Settings declared once, as fields of a dataclass, and files of settings.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Limits:
        max_size: int = setting(100, "members that a group may have", "group.max.size", least=1)

Checks, properties by Kafka's names, ``--config`` of commands and their help read the declaration.

Laws:

* A value that cannot work is refused with the setting's name, before anything is opened.
* The traceback of a wrong setting, as pytest shows it, has no frame of ours.
* A setting that is not declared does not exist; a similar name is suggested.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field, fields
from functools import cache
from operator import methodcaller
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from kcoord_wire.protocol.wording import near_names

S = TypeVar("S")

__tracebackhide__ = methodcaller("errisinstance", (ValueError, TypeError))
"""pytest asks it with its `ExceptionInfo`: the traceback of a wrong setting ends at whose it is. Each module that
checks settings has it, for all its frames, since dataclasses make their ``__init__`` themselves."""

MAX_INT32: Final = (1 << 31) - 1


class Setting(NamedTuple):
    """A declaration.

    :ivar about: what it is for, without a full stop
    :ivar name: Kafka's; empty for one without
    :ivar least: of a number
    :ivar most: likewise
    :ivar read: reads its text; ValueError says what is wrong with it. None for a whole number
    :ivar coarse: another name of Kafka for it in a greater unit, and the number of ours in that
    """

    about: str
    name: str = ""
    least: int = 0
    most: int = MAX_INT32
    read: Callable[[str], Any] | None = None
    coarse: tuple[str, int] | None = None


class SettingsError(ValueError):
    """A setting that is invalid.

    :ivar where: the file and the place in it, ``permissions.toml: allow[2].operations`` (counted from 1); of a value
        that is not from a file, its name
    :ivar what: what is wrong with it
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what


def setting(default: Any, about: str, name: str = "", **more: Any) -> Any:
    """Return a field of a dataclass that is a setting, with the arguments of `Setting`.

    :param default: `dataclasses.MISSING` for one that must be given
    """
    return field(default=default, metadata={"setting": Setting(about, name, **more)})


@cache
def declarations(kind: type) -> Mapping[str, Setting]:
    """Return the settings of a kind, by their fields."""
    return {each.name: each.metadata["setting"] for each in fields(kind) if "setting" in each.metadata}


@cache
def _types(kind: type) -> Mapping[str, tuple[Any, ...]]:
    """Return the types that each field may have, or the texts; without those that are not checked."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        parts = hint.__args__ if isinstance(hint, UnionType) else get_args(hint) or (hint,)
        if get_origin(hint) in (None, UnionType, Literal) and not any(map(get_origin, parts)):
            found[name] = parts
    return found


def check_values(settings: Any) -> None:
    """Check the types of settings, the choices of texts and the bounds of numbers.

    :raises TypeError: a value is of another type
    :raises ValueError: one is out of range
    """
    kind: Any = type(settings)
    for name, allowed in _types(kind).items():
        value = getattr(settings, name)
        if isinstance(allowed[0], str):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; there are {', '.join(allowed)}")
        elif not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            words = " or ".join("None" if each is NoneType else each.__name__ for each in allowed)
            raise TypeError(f"{name} must be of type {words}, not {value!r}")
    for name, declared in declarations(kind).items():
        if isinstance(value := getattr(settings, name), int) and (wrong := _out_of_bounds(declared, value)):
            raise ValueError(f"{name} {wrong}")


def _out_of_bounds(declared: Setting, value: int) -> str:
    if value < declared.least:
        return f"must be {declared.least} or more, not {value}"
    return f"must be {declared.most} or less, not {value}" if value > declared.most else ""


def _names(kind: type) -> Iterator[tuple[str, str, Setting, int]]:
    """Yield Kafka's names: name, field, declaration, and how many of the field's unit are one of the name's."""
    for attribute, declared in declarations(kind).items():
        if declared.coarse is not None:
            name, factor = declared.coarse
            yield name, attribute, declared, factor
        if declared.name:
            yield declared.name, attribute, declared, 1


def properties_of(settings: Any) -> dict[str, str]:
    """Return the numbers among settings by Kafka's names, as DescribeConfigs shows those of a broker."""
    values = (
        (name, getattr(settings, attribute), factor)
        for name, attribute, declared, factor in _names(type(settings))
        if declared.read is None
    )
    return {name: str(value // factor) for name, value, factor in values if value % factor == 0}


def numbers_of(kind: type) -> dict[str, tuple[str, int]]:
    """Return default and least value of the numbers among the settings of a kind, by Kafka's names."""
    defaults = {each.name: each.default for each in fields(kind)}
    return {
        name: (str(defaults[attribute]), declared.least)
        for name, attribute, declared, factor in _names(kind)
        if declared.read is None and factor == 1
    }


def texts_of(kind: type) -> dict[str, str]:
    """Return what the settings of a kind are for, by Kafka's names."""
    return {name: declared.about for name, _, declared, _ in _names(kind)}


def from_properties(kind: type[S], properties: Mapping[str, str | int]) -> S:
    """Return settings of a kind, by Kafka's names.

    :raises SettingsError: a setting does not exist, or cannot have this value
    """
    known = {name: (attribute, declared, factor) for name, attribute, declared, factor in _names(kind)}
    values: dict[str, Any] = {}
    for name, text in properties.items():
        if name not in known:
            raise SettingsError(name, f"unknown; {suggestion(name, known)}")
        attribute, declared, factor = known[name]
        try:
            value = int(text) if declared.read is None else declared.read(str(text))
        except ValueError as error:
            what = str(error) if declared.read else f"must be a whole number, not {text!r}"
            raise SettingsError(name, what) from None
        if declared.read is None:
            if wrong := _out_of_bounds(declared._replace(most=declared.most // factor), value):
                raise SettingsError(name, wrong)
            value *= factor
        values[attribute] = value
    return kind(**values)


def help_lines(kind: type) -> list[str]:
    """Return a line for each setting with a name of Kafka's: ``NAME=DEFAULT  what it is for``."""
    defaults = {each.name: each.default for each in fields(kind)}
    shown = []
    for attribute, declared in declarations(kind).items():
        if declared.name:
            value: Any = defaults[attribute]
            text = ",".join(value) if isinstance(value, tuple) else value
            also = f"; also {declared.coarse[0]}" if declared.coarse else ""
            shown.append((f"{declared.name}={text}", declared.about + also))
    width = max(len(text) for text, _ in shown)
    return [f"{text:<{width}}  {about}" for text, about in shown]


# ---- files


def read_tables(path: Path | str, known: Mapping[str, str]) -> dict[str, Any]:
    """Return the tables of a TOML file.

    :param known: the tables that it may have, and how each is written
    :raises SettingsError: it is not TOML, or has another table
    :raises OSError: it cannot be read
    """
    import tomllib  # here: most commands read no file

    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise SettingsError(str(path), str(cause)) from None
    for name in document:
        if name not in known:
            raise SettingsError(f"{path}: {name}", f"unknown; there can be {' and '.join(known.values())}")
    return document


def read_rules(path: Path | str, keys: Mapping[str, Collection[str]]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return the rules of a TOML file of ``[[kind]]`` tables, each with its place in the file. Errors as `read_tables`.

    :param keys: for each kind of rule, the keys that it may have
    """
    document = read_tables(path, {kind: f"[[{kind}]]" for kind in keys})
    rules = {}
    for kind, known in keys.items():
        tables = document.get(kind, [])
        if not isinstance(tables, list):
            raise SettingsError(f"{path}: {kind}", f"rules are written [[{kind}]]")
        rules[kind] = [(f"{path}: {kind}[{number}]", table) for number, table in enumerate(tables, 1)]
        for where, table in rules[kind]:
            if not isinstance(table, dict):
                raise SettingsError(where, "must be a table")
            for key in table:
                if key not in known:
                    raise SettingsError(f"{where}.{key}", f"unknown; {suggestion(key, known)}")
    return rules


def suggestion(name: str, known: Collection[str]) -> str:
    """Return what somebody may have meant by an unknown name."""
    near = near_names(name, known)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
