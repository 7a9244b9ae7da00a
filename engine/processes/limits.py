"""Limits of an attempt as people write them: in config.toml, in an agent's config, in a role."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from casfs.errors import Invalid
from casfs.system.sizes import UNITS, readable

NAMES = ("memory", "processes", "cpuS", "network")
MIN_MEMORY = 16 << 20  # less would end what starts the program
SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)")
FORMS = {
    "memory": "a number of bytes, or a text like 2G, of 16M or more",
    "processes": "a whole number from 1",
    "cpuS": "a whole number of seconds from 1",
    "network": "true or false",
    "enforce": "true or false",
}


@dataclass(frozen=True)
class Limits:
    """Of one attempt: `memory` in bytes, `processes` (threads count), `cpu` in seconds; None for no
    limit. `enforce`: an attempt fails where one of them cannot be held."""

    memory: int | None = None
    processes: int | None = None
    cpu: int | None = None
    network: bool = True
    enforce: bool = True

    def asked(self) -> dict[str, int | bool]:
        """Returns the limits that are set, by NAMES."""
        values = zip(NAMES, (self.memory, self.processes, self.cpu, self.network), strict=True)
        return {name: limit for name, limit in values if limit is not None and limit is not True}

    def reached(self, name: str) -> str:
        """Says for a reason that a limit was reached."""
        if name == "processes":
            return f"its limit of {self.processes} processes was reached"
        limits = {"memory": f"memory limit of {readable(self.memory or 0)}"}
        return f"ended by its {limits.get(name, f'limit of {self.cpu} s of processor time')}"


def merge(*tables: Mapping[str, Any]) -> Limits:
    """Reads tables of limits; of a name that several have, the last holds. Raises Invalid."""
    for table in tables:
        for fault in faults(table, "limits") if table != {} else ():
            raise Invalid(fault)
    value = {name: limit for table in tables for name, limit in table.items()}
    memory = value.get("memory")
    return Limits(
        None if memory is None else _bytes(memory),
        value.get("processes"),
        cpu=value.get("cpuS"),
        network=value.get("network", True),
        enforce=value.get("enforce", True),
    )


def faults(value: object, path: str) -> Iterator[str]:
    """Yields what is wrong with a table of limits."""
    if not isinstance(value, Mapping):
        yield f"{path}: must be an object of {', '.join(FORMS)}"
        return
    for name, limit in value.items():
        if name not in FORMS:
            yield f"{path}.{name}: no such field; there are {', '.join(FORMS)}"
        elif not _fits(name, limit):
            yield f"{path}.{name}: must be {FORMS[name]}"


def _fits(name: str, value: object) -> bool:
    if name in ("network", "enforce"):
        return isinstance(value, bool)
    if name == "memory" and isinstance(value, str) and SIZE.fullmatch(value):
        value = _bytes(value)
    return type(value) is int and (MIN_MEMORY if name == "memory" else 1) <= value < 1 << 53


def _bytes(value: str | int) -> int:
    if isinstance(value, int):
        return value
    size_match = SIZE.fullmatch(value)
    assert size_match is not None
    return int(size_match[1]) * UNITS[size_match[2]]
