"""Looking at a directory stores nothing: not its contents, not their hashes, not its names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casfs.digest import hash_bytes
from casfs.store.store import Store
from casfs.workspaces import strategies
from engine.workflow import registry as workflows
from tests.support.engine import Cli, daemon, loop, says
from tests.support.helpers import write_tree
from tests.support.stored_bytes import assert_nowhere, blobs, files_with
from tests.support.strategies import able

SECRET = b"KEY=f2c1c6d9a0"
MIDDLE = SECRET + bytes(range(256)) * 40  # of a pack, or a file of its own
LARGE = MIDDLE * 150  # > 1 MiB: read in pieces
NAME = b"a-name-of-its-own"
TREE = {"text": b"one\ntwo\n", "src": {"a": b"a\n" * 700}, "large": b"large" * 300_000}
BACKENDS = [able(name) for name in strategies.STRATEGIES]


@pytest.fixture
def place(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: recorded as `app`, and then changed."""
    place = write_tree(tmp_path / "place", TREE)
    cli("checkpoint", "create", "app", place)
    change(place)
    monkeypatch.chdir(place)
    return place


def change(place: Path) -> None:
    (place / ".env2").write_bytes(SECRET + b"\n")
    (place / "text").write_bytes(b"one\n" + SECRET + b"\n")
    (place / "src/a").write_bytes(MIDDLE)
    (place / "large").write_bytes(LARGE)
    (place / NAME.decode()).write_bytes(b"")


def assert_unseen(cli: Cli, before: dict[str, bytes]) -> None:
    """Nothing of what `change` wrote is in the store, which has the blobs `before`."""
    after = blobs(cli.root)
    assert after.keys() == before.keys()
    assert_nowhere(cli.root, SECRET, NAME)
    for content in (SECRET + b"\n", MIDDLE, LARGE):
        hash = hash_bytes(content)
        assert files_with(cli.root, bytes.fromhex(hash)) == []
        assert files_with(cli.root, hash.encode()) == []


LOOKS = [
    ("status", "."),
    ("status", ".", "--json"),
    ("status", "src"),
    ("status", ".", "--against", "app"),
    ("diff",),
    ("diff", "--patch"),
    ("diff", "--stat"),
    ("diff", "--json"),
    ("diff", ".", "--patch", "--", "text", "src"),
    ("diff", "app", "."),
    ("diff", ".", "app", "--patch"),
    ("diff", "app", "--stat"),
    ("diff", ".", "./src"),
    ("checkpoint", "restore", "app", ".", "--dry-run"),
    ("checkpoint", "restore", "app", ".", "--dry-run", "--verify"),
    ("checkpoint", "restore", "app", ".", "--dry-run", "--force", "--delete-untracked"),
    ("checkpoint", "restore", "app", ".", "--dry-run", "--", "text"),
    ("checkpoint", "restore", "app", "../new", "--dry-run", "--", "text"),
    ("checkpoint", "create", "app", ".", "--dry-run"),
]
REFUSED = [
    ("checkpoint", "restore", "app", "."),
    ("checkpoint", "restore", "app", ".", "--delete-untracked"),
    ("checkpoint", "restore", "app", ".", "--", "text"),
    ("checkpoint", "restore", "app", ".", "--verify"),
]


@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
def test_a_look_stores_nothing(cli: Cli, place: Path, arguments: tuple[str, ...]) -> None:
    before = blobs(cli.root)
    first = cli(*arguments)
    assert_unseen(cli, before)
    assert cli(*arguments).out == first.out
    assert_unseen(cli, before)


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_what_is_refused_stores_nothing(cli: Cli, place: Path, arguments: tuple[str, ...]) -> None:
    before = blobs(cli.root)
    assert "local changes would be overwritten" in cli(*arguments, code=4).err
    assert_unseen(cli, before)


def test_a_restore_stores_nothing_of_the_files_that_it_leaves(cli: Cli, place: Path) -> None:
    (place / "src/a").unlink()
    cli("checkpoint", "restore", "app", ".", "--", "src")
    assert (place / "src/a").read_bytes() == b"a\n" * 700
    assert (place / "large").read_bytes() == LARGE
    assert_unseen(cli, blobs(cli.root))


def test_what_is_overwritten_is_stored(cli: Cli, place: Path) -> None:
    cli("checkpoint", "restore", "app", ".", "--force")
    assert (place / "text").read_bytes() == TREE["text"]
    assert (place / ".env2").exists()
    cli("fsck")
    cli("undo")
    assert (place / "src/a").read_bytes() == MIDDLE
    assert (place / "large").read_bytes() == LARGE


def test_what_is_deleted_is_stored(cli: Cli, place: Path) -> None:
    for name in ("text", "src/a", "large"):
        cli("checkpoint", "restore", "app", ".", "--force", "--", name)
    cli("checkpoint", "restore", "app", ".", "--delete-untracked")
    assert not (place / ".env2").exists()
    cli("fsck")
    cli("undo")
    assert (place / ".env2").read_bytes() == SECRET + b"\n"


def test_a_patch_is_that_of_two_recorded_trees(cli: Cli, place: Path) -> None:
    looked = {option: cli("diff", *option).out for option in ((), ("--patch",), ("--stat",))}
    cli("checkpoint", "create", "app", ".")
    for option, out in looked.items():
        assert cli("diff", "app~1", "app", *option).out == out
    assert b"+" + SECRET in looked[("--patch",)]


def test_a_checkpoint_after_a_look_is_complete(cli: Cli, place: Path) -> None:
    for _ in range(2):
        cli("status", ".")
    cli("checkpoint", "create", "app", ".")
    assert cli("cat", "app:.env2").out == SECRET + b"\n"
    assert cli("cat", "app:src/a").out == MIDDLE
    assert cli("cat", "app:large").out == LARGE
    assert cli("status", ".").text.splitlines()[1:] == ["no changes"]
    cli("fsck")


def test_a_cached_action_that_is_looked_up(cli: Cli, place: Path) -> None:
    (place / "large").unlink()
    before = blobs(cli.root)
    said = cli("action", "lookup", "--", "true", code=3).err
    assert "no earlier run of this command is cached" in said
    assert_nowhere(cli.root, SECRET, NAME)
    assert blobs(cli.root).keys() == before.keys()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_workspace_that_is_compared_or_not_closed(cli: Cli, tmp_path: Path, backend: str) -> None:
    source = write_tree(tmp_path / "source", TREE)
    cli("checkpoint", "create", "app", source)
    work = tmp_path / "work"
    cli("workspace", "open", "app", work, "--backend", backend)
    try:
        change(work)
        before = blobs(cli.root)
        assert b"+" + SECRET in cli("diff", work, "--patch").out
        assert "M text" in cli("status", work).text
        assert "not committed" in cli("workspace", "close", work, code=4).err
        assert blobs(cli.root).keys() == before.keys()
        # The upper layer of an overlay is in the store's directory, as files.
        kept = [name for name in files_with(cli.root, SECRET) if "workspaces/" not in name]
        assert kept == []
        cli("workspace", "commit", work)
        assert cli("cat", "app:src/a").out == MIDDLE
    finally:
        cli("workspace", "close", work, "--force")


SCRIPT = "sed -i 's/^1$/one/' text; echo log >log"


def test_an_apply_that_is_checked_or_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_tree(tmp_path / "project", {"text": b"1\n2\n3\n4\n5\n"})
    with Store.open(cli.root) as store:
        workflows.add(store, loop(1))
    agent = f"a=command:{json.dumps(says({}, SCRIPT))}"
    with daemon(cli.root):
        start = ("thread", "start", "sample", "--input", "x", "--workspace", place)
        cli(*start, "--name", "mend", "--agent", agent, "--wait")
    monkeypatch.chdir(place)
    before = blobs(cli.root)
    (place / "text").write_bytes(b"1\n2\n3\n4\n" + SECRET + b"\n")
    (place / ".env2").write_bytes(SECRET)
    assert cli("thread", "apply", "mend", "--check").text == "A log\nM text\n"
    (place / "text").write_bytes(b"uno " + SECRET + b"\n2\n3\n4\n5\n")
    assert "conflict" in cli("thread", "apply", "mend", "--check", code=1).text
    assert blobs(cli.root).keys() == before.keys()
    assert_nowhere(cli.root, SECRET)
    (place / "text").write_bytes(b"<<<<<<< ours\n=======\n" + SECRET + b"\n>>>>>>> x\n")
    assert "are not resolved" in cli("thread", "apply", "mend", code=4).err
    assert blobs(cli.root).keys() == before.keys()
    assert_nowhere(cli.root, SECRET)
    (place / "text").write_bytes(b"1\n2\n3\n4\n" + SECRET + b"\n")
    assert "`casfs undo` takes it back" in cli("thread", "apply", "mend").text
    cli("fsck")
