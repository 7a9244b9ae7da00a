"""`casfs gc --purge`: the content of one blob goes for good, and what refers to it stays."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from casfs.backend.derived import repairable
from casfs.digest import TreeHash, hash_bytes
from casfs.errors import NotFound, Purged
from casfs.maintenance import purge
from casfs.store import local_trees, tombstones
from casfs.store.store import Store
from casfs.system.clock import now_ms, rfc3339
from casfs.trees.diff import unified_diff
from tests.support.cli import lines, value
from tests.support.engine import Cli
from tests.support.helpers import LARGE, put_tree, read_tree, write_tree
from tests.support.maintenance import age
from tests.support.native import ensure_image
from tests.support.thread_example import make_thread

DAY = rfc3339(now_ms())[:10]
SMALL = b"PASSWORD=hunter2hunter2"
SECRETS = {"small": SMALL, "large": SMALL * 200, "long": SMALL * 4000}


def traces(root: Path, secret: bytes) -> list[str]:
    """The files of a store that hold these bytes."""
    return [
        path.relative_to(root).as_posix()
        for path in sorted(root.rglob("*"))
        if path.is_file() and secret in path.read_bytes()
    ]


def local_of(store: Store, node: str) -> TreeHash:
    local = local_trees.get(store, node)
    assert local is not None
    return local.root


@pytest.fixture(params=SECRETS)
def secret(request: pytest.FixtureRequest) -> bytes:
    return SECRETS[request.param]


def test_nothing_of_it_is_left(cli: Cli, opened: Store, tmp_path: Path, secret: bytes) -> None:
    hash = hash_bytes(secret)
    place = write_tree(tmp_path / "place", {".env": secret, "f": b"other"})
    made = cli("checkpoint", "create", "work", place, "--json").json
    other = cli("checkpoint", "create", "other", place).word
    ensure_image(opened, local_of(opened, made["hash"]))
    name = f"work@{made['id']}"
    arguments = ("gc", "--purge", "work:.env")
    refused = cli.refused(*arguments, code=4)
    assert f"{hash} is in other@{other}, {name}; use --force to purge it" in refused
    planned = value(cli, *arguments, "--dry-run")
    heads = [f"checkpoints/other/{other}", f"checkpoints/work/{made['id']}"]
    whole = local_of(opened, made["hash"])
    assert planned == {
        "hash": hash, "bytes": len(secret), "nodes": [whole], "heads": heads, "dryRun": True
    }  # fmt: skip
    opened.close()
    assert traces(cli.root, SMALL) != []
    assert lines(cli, *arguments, "--force") == [
        f"{hash} purged, {len(secret)} bytes; in other@{other}, {name}"
    ]
    assert traces(cli.root, SMALL) == []
    assert f"blob {hash}: its content was purged" in cli.refused("get", hash, code=1)
    assert ".env: it was purged" in cli.refused(*arguments, "--force", code=3)
    assert f"{hash} was purged before" in cli.refused("gc", "--purge", hash, "--force", code=4)
    assert lines(cli, "fsck")[-1].endswith(": no faults")
    assert lines(cli, "gc")[0].startswith("freed 0 blobs")
    restored = cli("checkpoint", "restore", "work", tmp_path / "out")
    assert f".env: purged {DAY}; left out" in restored.err
    assert read_tree(tmp_path / "out") == {b"f": b"other"}


def test_the_same_bytes_are_stored_again_once_they_are_allowed(
    cli: Cli, opened: Store, tmp_path: Path, secret: bytes
) -> None:
    place = write_tree(tmp_path / "place", {".env": secret, "f": b"other"})
    hash = hash_bytes(secret)
    cli("checkpoint", "create", "work", place)
    cli("gc", "--purge", hash[:12], "--force")
    (tmp_path / "again").write_bytes(secret)
    cli("put", tmp_path / "again")
    assert "its content was purged" in cli.refused("get", hash, code=1)
    tombstones.remove(opened, hash)
    assert "may be stored again" in cli.refused("get", hash, code=1)
    cli("put", tmp_path / "again")
    assert cli("get", hash).out == secret
    assert lines(cli, "fsck")[-1].endswith(": no faults")


def test_a_tombstone_is_kept_until_it_is_taken_away(cli: Cli, opened: Store) -> None:
    hash = opened.put(SMALL).hash
    assert value(cli, "gc", "--purge", hash)["heads"] == []
    with pytest.raises(Purged):
        repairable(opened.blobs).verify(hash)
    with pytest.raises(Purged):
        list(opened.blobs.get_many([hash]))
    with pytest.raises(Purged):
        opened.blobs.open(hash)
    age(opened)
    cli("gc")
    assert opened.blobs.info([hash])[hash].purged
    tombstones.remove(opened, hash)
    age(opened)
    cli("gc")
    assert not opened.blobs.info([hash])


def test_what_is_not_purged(cli: Cli, opened: Store, store: Store) -> None:
    node = opened.put_node("content", {"text": "t", "artifacts": []}).hash
    assert "is a content: only a part of its text" in cli.refused("gc", "--purge", node, code=4)
    empty = opened.put(b"").hash
    assert "there is nothing to purge" in cli.refused("gc", "--purge", empty, code=4)
    assert "no blob " in cli.refused("gc", "--purge", "0f" * 32, code=3)
    tree = put_tree(opened, {"d": {"f": LARGE}})
    assert f"{tree}:d is not a file" in cli.refused("gc", "--purge", f"{tree}:d", code=4)
    with pytest.raises(NotFound):
        purge.purge(opened, "0f" * 32)


def test_threads_and_removals_are_named(cli: Cli, opened: Store, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "place", {"d": {"f": SMALL}})
    id = cli("checkpoint", "create", "work", place).word
    removal = cli("checkpoint", "rm", "work").word
    found = value(cli, "gc", "--purge", hash_bytes(SMALL), "--dry-run")
    assert found["heads"] == [f"removed/{removal}/checkpoints/work/{id}"]
    assert opened.get(hash_bytes(SMALL)) == SMALL


def test_the_diffs_of_steps_show_none_of_it(cli: Cli, opened: Store) -> None:
    """Of a file that came, that changed and that went; what they show of others stays."""
    key, line = b"first line\nTOKEN=hunter2hunter2\n-- last", b"other\n"
    trees = [{}, {"a": line, "key.txt": key}, {"a": line * 2, "key.txt": b"new\n"}, {"b": line}]
    trees += [{"b": line, "key.txt": key}, {"b": line}]
    roots = [put_tree(opened, dict(one)) for one in trees]
    thread = make_thread(opened)
    diffs = []
    for old, new in pairwise([thread.tree, *roots]):
        thread.tree = new
        changes = opened.put(unified_diff.patch(opened, old, new)).hash
        diffs.append(changes)
        thread.step("planner", "done", changes=changes)
    assert sum(b"hunter2" in opened.get(one) for one in diffs) == 4
    cli("purge", hash_bytes(key), "--force")
    opened.purged.recheck()
    left = [opened.get(one) for one in diffs[1:]]
    assert all(b"hunter2" not in one and b"first line" not in one for one in left)
    assert b"A key.txt (purged)\n" in left[0]
    assert b"+other\n" in left[0]
    assert b"M key.txt (purged)\n" in left[1]
    assert b" other\n+other\n" in left[1]
    assert b"-new\n" in left[2], "another content of the same path stays"
    assert traces(cli.root, b"hunter2") == []
    assert lines(cli, "fsck")[-1].endswith(": no faults")
    assert lines(cli, "gc")[0].startswith("freed 0 blobs")


def test_remotes_that_have_it_are_named(cli: Cli, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "place", {"f": SMALL})
    cli("checkpoint", "create", "work", place)
    (tmp_path / "remote").mkdir()
    cli("remote", "add", "origin", (tmp_path / "remote").as_uri())
    cli("push", "origin", "work")
    assert "remotes have it until the next `casfs push`" in cli("purge", "work:f", "--force").err
