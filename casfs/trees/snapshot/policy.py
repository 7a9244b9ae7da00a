"""The settings of what is recorded: `snapshot.work`, `snapshot.private`, `snapshot.allow`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from casfs import config
from casfs.scanner import Scanner
from casfs.store import Store


@dataclass(frozen=True, slots=True)
class Policy:
    """`work`, `private`: patterns of paths that are moved to that class; `allow`: fingerprints of
    secrets that are none."""

    work: Sequence[str] = ()
    private: Sequence[str] = ()
    allow: Sequence[str] = ()

    def scanner(self) -> Scanner:
        return Scanner(self.allow)


def load(store: Store) -> Policy:
    """Returns the policy of a store. Raises Invalid for a setting that is not valid."""
    if store.root is None:
        return Policy()
    values = config.values(store.root, os.environ)
    return Policy(
        work=values["snapshot.work"],
        private=values["snapshot.private"],
        allow=values["snapshot.allow"],
    )
