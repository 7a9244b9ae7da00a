"""Shared by the tests of the command line: constants, files, and parsed output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from casfs.digest import hash_bytes
from casfs.store.store import Store
from casfs.threads import threads
from engine.workflow import registry as workflows
from tests.support.engine import Cli, carry_on
from tests.support.helpers import LARGE

DEVELOP = Path(workflows.__file__).parents[1] / "workflows" / "develop.json"
UNKNOWN = "ab" * 32
ULID = "01K00000000000000000000000"
ID = "01JD0000000000000000000000"
LARGE_HASH = hash_bytes(LARGE)


def lines(cli: Cli, *arguments: str | Path, code: int = 0) -> list[str]:
    return cli(*arguments, code=code).out.decode().splitlines()


def value(cli: Cli, *arguments: str | Path, code: int = 0) -> Any:
    return json.loads(cli(*arguments, "--json", code=code).out)


def written(path: Path, value: Any) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def run_thread(store: Store, thread: threads.Thread) -> threads.Thread:
    import trio

    return trio.run(carry_on, store, thread)
