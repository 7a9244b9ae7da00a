"""A project directory and a store for tests of the action cache."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from casfs.actions import key, runner
from casfs.actions.key import Action, Request
from casfs.actions.miss_reason import explain_miss
from casfs.actions.runner import Outcome, Streams
from casfs.store.store import Store

PATH = os.environ.get("PATH", os.defpath)
PROJECT = {"src": {"a.py": b"a\n", "b.py": b"b\n"}, "empty": {}}


@dataclass
class Bench:
    """A project and a store; `run` caches unless it is told otherwise."""

    store: Store
    root: Path
    logged: list[str] = field(default_factory=list)
    out: io.BytesIO = field(default_factory=io.BytesIO)
    err: io.BytesIO = field(default_factory=io.BytesIO)

    def request(self, *argv: str, **more: Any) -> Request:
        given = {
            "directory": self.root,
            "working_directory": self.root,
            "env": {"PATH": PATH},
            **more,
        }
        return key.request(argv, **given)

    def run(self, *argv: str, cached: bool = True, **more: Any) -> Outcome:
        self.logged, self.out, self.err = [], io.BytesIO(), io.BytesIO()
        streams = Streams(self.out, self.err, self.logged.append)
        return runner.run(self.store, self.request(*argv, **more), streams, cached=cached)

    def sh(self, script: str, **more: Any) -> Outcome:
        return self.run("sh", "-c", script, **more)

    def key(self, *argv: str, **more: Any) -> str:
        return self.identify(*argv, **more).hash

    def identify(self, *argv: str, **more: Any) -> Action:
        return key.identify(self.store, self.request(*(argv or ("make",)), **more))

    def why(self, *argv: str, **more: Any) -> str:
        return explain_miss(self.store, self.identify(*argv, **more))
