"""What the configuration's parser has to say against it, in one line that names the key and what would do."""

import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping

from jsonargparse import ArgumentParser

from fednews import types

Parts = Mapping[str, type]
"""The class that the parts of a configuration called so descend from."""


def explain(message: str, parser: ArgumentParser, parts: Parts) -> str:
    """The parser's complaint in one line, with the nearest valid name where a name is wrong."""
    for found in (_unknown_class, _unknown_key, _unnamed_class, _wrong_value):
        if line := found(message, parser, parts):
            return line
    return " ".join(_likeliest(message).split()).replace("Parser key", "configuration key")


def _likeliest(message: str) -> str:
    """What was wrong with the one alternative that counts, out of a report on all alternatives of a type."""
    _, errors, listed = message.partition("Errors:")
    bullets = re.split(r"\n\s*- ", listed.split("Given value")[0])
    found = next((bullet for bullet in bullets if bullet.strip() and "NoneType" not in bullet), message)
    return f"{key}: {found}" if errors and (key := _key(message)) else found


def _unknown_class(message: str, parser: ArgumentParser, parts: Parts) -> str | None:
    found = re.search(r"Expected a dot import path string: (\w+(?:\.\w+)*)", message)
    if not found or [*_expected(message)]:
        return None
    key = _key(message).split(".")[0]
    known = sorted(_ready(parts[key])) if key in parts else []
    near = difflib.get_close_matches(found[1], known, 1)
    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}" if known else "give its import path"
    return f"{key or 'configuration'}: there is no class '{found[1]}': {hint}"


_UNKNOWN_KEY = (
    r"[Oo]ption '([\w.]+)' is not accepted",
    r"does not accept option '([\w.]+)'",
    r"[Uu]nrecognized arguments?: --([\w.]+)",
    r"[Kk]ey '?([\w.]+)'? is not expected",
)


def _unknown_key(message: str, parser: ArgumentParser, parts: Parts) -> str | None:
    line = " ".join(message.split())
    unknown = next((found[1] for pattern in _UNKNOWN_KEY if (found := re.search(pattern, line))), None)
    if unknown is None:
        return None
    if (part := _key(message).split(".")[0]) and "." not in unknown:
        unknown = f"{part}.{unknown}"
    return _nearest(unknown, _known_keys(parser, parts))


def _nearest(unknown: str, known: list[str]) -> str:
    leaves = {key.rsplit(".", 1)[-1]: key for key in known}
    near = difflib.get_close_matches(unknown, known, 1) or [
        leaves[name] for name in difflib.get_close_matches(unknown.rsplit(".", 1)[-1], leaves, 1)
    ]
    return f"unknown configuration key '{unknown}'" + (f": did you mean '{near[0]}'?" if near else "")


def _unnamed_class(message: str, parser: ArgumentParser, parts: Parts) -> str | None:
    """A setting of a part whose class nobody has named yet."""
    unnamed = "is abstract" in message or "Dict must include a class_path" in message
    if not unnamed or not (setting := re.search(r"NestedArg\(key='([\w.]+)'", message)):
        return None
    part = _key(message)
    if f"{part}.{setting[1].split('.')[0]}" not in (known := _known_keys(parser, parts)):
        return _nearest(f"{part}.{setting[1]}", known)
    return f"{part}.{setting[1]}: name the {part} first, by --{part} CLASS or in a --config file before it"


_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "list": "a list"}
_RANGED = {kind.__name__: kind for kind in vars(types).values() if hasattr(kind, "_expression")}


def _wrong_value(message: str, parser: ArgumentParser, parts: Parts) -> str | None:
    expected = list(dict.fromkeys(_expected(message)))
    value = _value(message)
    if not expected or value is None:
        return None
    infinite = _KINDS["float"] in expected and value.lower().lstrip("+-") in ("inf", "infinity")
    hint = f": infinity is written {'-' * value.startswith('-')}.inf" if infinite else ""
    return f"{_key(message)} must be {' or '.join(expected)}, not '{value}'{hint}"


def _expected(message: str) -> Iterator[str]:
    """What the alternatives of a type ask for, but for null."""
    pattern = r"Expected a <class '(\w+)'>|Expected a typing\.Literal\[(.*?)\](?=[\s.]|$)|Not of type (\w+)"
    choices = []
    for kind, literal, ranged in re.findall(pattern, _innermost(message)):
        if literal:
            choices += [choice.strip("'\"") for choice in literal.split(", ")]
        elif ranged in _RANGED:
            number = _RANGED[ranged]
            bounds = re.sub(r"v([<>]=?)", r"\1 ", number._expression)
            yield f"{_KINDS[number._type.__name__]} {bounds}"
        elif kind not in ("", "NoneType"):
            yield _KINDS.get(kind, kind)
    if choices:
        yield f"one of {', '.join(dict.fromkeys(choices))}"


_VALUES = (
    r"Not of type \w+: (\S+) does not conform",
    r"(?:with base 10|to float): '(.*)'",
    r"G(?:iven|ot) value: (.*)",
)


def _value(message: str) -> str | None:
    line = re.sub(r"\. Got value: Namespace\(.*", "", _innermost(message))
    found = next((found[1] for pattern in _VALUES if (found := re.search(pattern, line))), "")
    nested = re.match(r"NestedArg\(key='[\w.]+', val='(.*)'\)", found)
    return nested[1] if nested else found.strip() or None


def _innermost(message: str) -> str:
    """What is said of the innermost key."""
    return message.rpartition("Parser key ")[2]


def _key(message: str) -> str:
    """The key that a message is about, out of those of the parts that it lies in."""
    first, *inner = list(dict.fromkeys(re.findall(r'Parser key "([\w.]+)"', message))) or [""]
    return ".".join([first, *(name for name in inner if not name.startswith(first))])


def _known_keys(parser: ArgumentParser, parts: Parts) -> list[str]:
    keys = [action.dest for action in parser._actions]
    for part, base in parts.items():
        for cls in _subclasses(base):
            keys += [f"{part}.{name}" for name in inspect.signature(cls).parameters]
    return keys


def _ready(base: type) -> Iterator[str]:
    """Names of the classes that can be made, of those that come with the base."""
    package = base.__module__.rpartition(".")[0]
    for cls in _subclasses(base):
        if cls.__module__.startswith(f"{package}.") and not inspect.isabstract(cls):
            yield cls.__name__


def _subclasses(base: type) -> Iterable[type]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)
