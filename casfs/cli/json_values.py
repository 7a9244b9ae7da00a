"""Values for --json: camelCase keys, times as RFC 3339 in UTC with milliseconds.

The keys of a record's fields are converted here; a payload, a schema or a workflow is a
document of its own and is printed as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from casfs.system.clock import moment as moment
from casfs.system.clock import times as times

TIME_SUFFIX = "_at"


def record(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass or a NamedTuple, those of such values inside too."""
    return fields({name: getattr(value, name) for name in _names(value)})


def fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """As `record`, of fields by name: of a record that another process has sent."""
    return {camel(name): _field(name, value) for name, value in values.items()}


def _names(value: Any) -> tuple[str, ...]:
    """Returns the names of a record's fields; none for another value."""
    return tuple(getattr(value, "__dataclass_fields__", getattr(value, "_fields", ())))


def camel(name: str) -> str:
    """Returns snake_case as camelCase."""
    first, *other_words = name.split("_")
    return first + "".join(map(str.capitalize, other_words))


def _field(name: str, value: Any) -> Any:
    if _names(value):
        return record(value)
    if isinstance(value, list | tuple):
        return [_field(name, item) for item in value]
    if isinstance(value, bytes | Path):
        return os.fsdecode(value)
    return moment(value) if name.endswith(TIME_SUFFIX) else value
