"""What a thread records of its workspace: the work, and what is here only, with the modes; its log
names private files once."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.restore.restore import restore
from tests.support.engine import begin, carry_on, loop, says, states, steps
from tests.support.helpers import take, write_tree

SCRIPT = """umask 022; mkdir -p node_modules out; echo 1 >node_modules/m; touch .env package.json
echo k >key; chmod 600 key; chmod 700 out; echo '*.log' >.casfsignore; echo more >>old.log
echo 1 >new.log"""


async def test_work_and_local_files_are_recorded_and_private_ones_named_once(
    disk_store: Store, tmp_path: Path
) -> None:
    root = take(disk_store, write_tree(tmp_path / "w", {".env.local": b"", "old.log": b""}))
    lines: list[dict[str, Any]] = []
    thread = begin(disk_store, loop(2), {"a": says({}, SCRIPT)}, root)
    ended = await carry_on(
        disk_store, thread, log=lambda line, **more: lines.append({"": line} | more)
    )
    named = [one for one in lines if one[""] == "private"]
    assert {one["thread"] for one in named} == {thread.id}
    assert sorted(one["path"] for one in named) == [".env", ".env.local"]
    step = steps(disk_store, ended)[-1]
    work = {path.decode() for path, _ in tree.walk(disk_store, step["workspace"])}
    # The patterns are those that the thread began with.
    assert work == {".casfsignore", "package.json", "key", "out", "old.log", "new.log"}
    entry = tree.find(disk_store, step["workspace"], b"old.log")
    assert disk_store.get(entry.digest.hash) == b"more\nmore\n"  # type: ignore[union-attr]
    state = states(disk_store, ended)[-1]
    restore(disk_store, state, tmp_path / "back")
    found = {
        str(path.relative_to(tmp_path / "back")): stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "back").rglob("*")
    }
    assert found == {
        ".env": 0o644, ".env.local": 0o644, ".casfsignore": 0o644, "package.json": 0o644,
        "old.log": 0o644, "new.log": 0o644,
        "node_modules": 0o755, "node_modules/m": 0o644, "key": 0o600, "out": 0o700,
    }  # fmt: skip
