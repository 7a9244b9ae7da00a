"""The settings of what is recorded: `snapshot.work`, `snapshot.private`, `snapshot.allow`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from casfs import config
from casfs.digest import is_hash
from casfs.errors import Invalid
from casfs.scanner import Scanner
from casfs.store.store import Store

NO_LINES: Mapping[bytes, Collection[int]] = MappingProxyType({})


class Policy(NamedTuple):
    """`work`, `private`: patterns of paths that are moved to that class; `allow`: fingerprints of
    secrets that are none; `allowed_lines`: by path, the lines in which what looks like one is
    none."""

    work: Sequence[str] = ()
    private: Sequence[str] = ()
    allow: Sequence[str] = ()
    allowed_lines: Mapping[bytes, Collection[int]] = NO_LINES

    def scanner(self) -> Scanner:
        return Scanner(self.allow)


def load(store: Store) -> Policy:
    """Returns the policy of a store. Raises Invalid for a setting that is not valid."""
    values = config.values(store.root, os.environ)
    allowed = values["snapshot.allow"]
    return Policy(
        work=values["snapshot.work"],
        private=values["snapshot.private"],
        allow=[entry for entry in allowed if is_hash(entry)],
        allowed_lines=_lines(entry for entry in allowed if not is_hash(entry)),
    )


def _lines(entries: Iterable[str]) -> dict[bytes, set[int]]:
    """Parses PATH:LINE. Raises Invalid."""
    lines: dict[bytes, set[int]] = {}
    for entry in entries:
        path, _, line = entry.rpartition(":")
        if not path or path.startswith("/") or not line.isdecimal() or int(line) < 1:
            raise Invalid(
                f"snapshot.allow: {entry!r} is neither PATH:LINE, the path relative to the recorded"
                " directory, nor the hash of a secret or a file"
            )
        lines.setdefault(os.fsencode(path), set()).add(int(line))
    return lines
