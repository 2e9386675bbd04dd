"""A configuration as MLflow parameters: flat, and named like the command line's options."""

import enum
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

VALUE_LIMIT = 6000
KEY_LIMIT = 250
CUT = " … (cut; the whole value is in config.yaml)"


def flatten(config: Mapping[str, Any]) -> dict[str, str]:
    """List the leaves of a resolved configuration by dotted key.

    A part given as ``class_path`` and ``init_args`` appears as its short class name under its own key,
    with its arguments below: ``algorithm=FedNewsRec``, ``algorithm.clip=0.005``. Values are written as
    the command line reads them (``null``, ``true``); one longer than MLflow takes is cut and says so.
    """
    return {_key(key): _cut(_text(value)) for key, value in _leaves("", config)}


def _leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and "class_path" in value:
        yield key, str(value["class_path"]).rsplit(".", 1)[-1]
        others = {name: item for name, item in value.items() if name not in ("class_path", "init_args")}
        arguments = {**(value.get("init_args") or {}), **others}
        if arguments:
            yield from _leaves(key, arguments)
    elif isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(f"{key}.{name}" if key else str(name), item)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(f"{key}.{index}", item)
    elif key:
        yield key, value


def _text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, str | os.PathLike):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}[str(value)]
    return json.dumps(value, ensure_ascii=False, default=str)


def _key(key: str) -> str:
    """MLflow refuses most punctuation in names."""
    return re.sub(r"[^\w\-. /:]", "_", key)[:KEY_LIMIT]


def _cut(value: str) -> str:
    return value if len(value) <= VALUE_LIMIT else value[: VALUE_LIMIT - len(CUT)] + CUT
