"""Secrets in what is recorded as it was given: the configs of agents, workflows, names of threads.

With a mark in its place a definition would not work any more, so it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casfs import canonical
from casfs.errors import Refused
from casfs.store.store import Store
from casfs.trees.snapshot import policy


def refuse_secrets(store: Store, texts: Mapping[str, Any]) -> None:
    """Raises Refused where one of these JSON values has a secret. `texts`: by what each is called
    in the message."""
    scanner = policy.load(store).scanner()
    for what, value in texts.items():
        for finding in scanner.scan(canonical.encode(value)):
            raise Refused(
                f"{what}: it holds what looks like a secret ({finding.kind}), and would be recorded"
                " with it; pass it in a variable or a file, or --allow-secret"
            )
