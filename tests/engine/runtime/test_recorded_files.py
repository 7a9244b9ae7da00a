"""What a thread records of its workspace: all of it, with its modes; its log names what looks
like a secret."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from casfs.store import Store
from casfs.trees.restore.restore import restore
from tests.support.engine import begin, carry_on, loop, says, steps
from tests.support.helpers import take, write_tree

SCRIPT = """umask 022; mkdir -p node_modules out; echo 1 >node_modules/m; touch .env package.json
echo k >key; chmod 600 key; chmod 700 out; echo '*' >.casfsignore"""


async def test_all_is_recorded_and_secrets_are_named_once(
    disk_store: Store, tmp_path: Path
) -> None:
    root = take(disk_store, write_tree(tmp_path / "w", {".env.local": b""}))
    lines: list[dict[str, Any]] = []
    thread = begin(disk_store, loop(2), {"a": says({}, SCRIPT)}, root)
    ended = await carry_on(
        disk_store, thread, log=lambda line, **more: lines.append({"": line} | more)
    )
    named = [one for one in lines if "may be secret" in one[""]]
    assert [(one["thread"], one["paths"]) for one in named] == [(thread.id, [".env", ".env.local"])]
    restore(disk_store, steps(disk_store, ended)[-1]["workspace"], tmp_path / "back")
    found = {
        str(path.relative_to(tmp_path / "back")): stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "back").rglob("*")
    }
    assert found == {
        ".env": 0o644, ".env.local": 0o644, ".casfsignore": 0o644, "package.json": 0o644,
        "node_modules": 0o755, "node_modules/m": 0o644, "key": 0o600, "out": 0o700,
    }  # fmt: skip
