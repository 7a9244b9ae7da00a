"""The format of `times` nodes: when the entries of one directory were modified.

A `directory` node has no times, so that equal work has one hash; they stand beside it, in a node
whose lists are in the order of that node's lists. Both are trees of the same shape: of a directory
in which nothing was touched, neither is written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, cast

from casfs.digest import TimesHash
from casfs.store.nodes.directory import KINDS, Entry, Subdirectory

Names = Mapping[str, list[bytes]]  # in each list of a directory's node


class Times(NamedTuple):
    """Of one directory, in nanoseconds since 1970 UTC; what is not known is left out. `own`: of the
    directory itself; `newest`: no file or link here or below is newer; `entries`: of files and
    links, by name; `below`: the nodes of its subdirectories, by name."""

    own: int | None
    newest: int | None
    entries: Mapping[bytes, int]
    below: Mapping[bytes, TimesHash]


class TimesRef(NamedTuple):
    """The node of a directory's times, None where the store has none, and its `newest`."""

    hash: TimesHash | None
    newest: int | None


UNKNOWN = Times(None, newest=None, entries={}, below={})


def newest_of(times: Iterable[int | None]) -> int | None:
    return max([time for time in times if time is not None], default=None)


def names_by_list(entries: Iterable[Entry]) -> Names:
    """Returns the names in each list of the node of a directory with these entries."""
    ordered = sorted(entries, key=attrgetter("name"))
    return {
        key: [entry.name for entry in ordered if isinstance(entry, kind)] for key, kind in KINDS
    }


def encode(names: Names, times: Times) -> dict[str, Any]:
    """Returns the payload of a node of times, beside a directory's node with these names."""
    payload: dict[str, Any] = {"own": _text(times.own), "newest": _text(times.newest)}
    for key, kind in KINDS:
        if kind is Subdirectory:
            payload[key] = [times.below.get(name) for name in names[key]]
        else:
            values = [times.entries.get(name) for name in names[key]]
            payload[key] = [None if value is None else str(value) for value in values]
    return payload


def decode(names: Names, payload: Mapping[str, Any]) -> Times:
    """Raises ValueError where the payload does not belong to a directory with these names."""
    below: dict[bytes, TimesHash] = {}
    entries: dict[bytes, int] = {}
    for key, kind in KINDS:
        for name, value in zip(names[key], payload[key], strict=True):
            if value is None:
                continue
            if kind is Subdirectory:
                below[name] = cast(TimesHash, value)
            else:
                entries[name] = int(value)
    return Times(_number(payload["own"]), _number(payload["newest"]), entries=entries, below=below)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _text(time: int | None) -> str | None:
    return None if time is None else str(time)
