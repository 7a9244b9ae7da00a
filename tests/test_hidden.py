"""What stays here is named nowhere, and is absent by its hash wherever others look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint
from casfs.digest import hash_bytes
from casfs.errors import NotFound
from casfs.mcp.reading import Reading
from casfs.store import local_trees
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.trees import tree
from casfs.trees.recorded_state import local_paths
from engine.workflow import registry as workflows
from tests.support.engine import Cli, daemon, loop, says
from tests.support.fuse import missing
from tests.support.helpers import write_tree
from tests.support.mcp import connected
from tests.support.web import serving

ENV = b"DB_PASSWORD=spectrum-9q7w\n"
SECOND = b"DB_PASSWORD=changed-77-pw\n"
PROJECT = {".env": ENV, "src": {"main.py": b"print()\n", ".env.local": ENV}, "empty": {}}
SCRIPT = "echo more >>src/main.py; cp .env copy.env"
AGENT = "a=command:" + json.dumps(says({}, SCRIPT))


@pytest.fixture
def used(cli: Cli, tmp_path: Path) -> set[str]:
    """A store with two checkpoints, a thread and a cached action of a project with private files;
    returns the hashes that stay here."""
    place = write_tree(tmp_path / "project", PROJECT)
    cli("checkpoint", "create", "work", place)
    (place / ".env").write_bytes(SECOND)
    cli("checkpoint", "create", "work", place)
    run = ("--input", place, "--output", "out.env", "--", "cp", ".env", "out.env")
    cli("action", "run", "--cache", *run)
    with Store.open(cli.root) as store:
        workflows.add(store, loop(2))
        with daemon(cli.root):
            made = cli("thread", "start", loop(2)["name"], "--input", "go", "--workspace", place,
                       "--agent", AGENT, "--json").json["id"]  # fmt: skip
            assert daemon_socket.request(cli.root, "wait", id=made)["status"] == "ended"
        return hidden_hashes(store)


def hidden_hashes(store: Store) -> set[str]:
    hashes: set[str] = set()
    for _, head in store.heads.list(local_trees.HEADS):
        hashes |= {head.hash}
        for path, entry in tree.walk(store, head.hash):  # type: ignore[arg-type]  # a tree
            if path.rpartition(b"/")[2] in (b".env", b".env.local", b"copy.env", b"out.env"):
                hashes.add(entry.digest.hash)  # type: ignore[union-attr]  # a file
    return hashes


def test_no_node_and_no_listing_names_them(cli: Cli, used: set[str]) -> None:
    assert {hash_bytes(ENV), hash_bytes(SECOND)} < used
    assert len(used) >= 7
    with Store.open(cli.root) as store:
        view = store.shown()
        assert store.blobs.local_among(used) == used
        for _, hash, info in view.blobs.iterate():
            assert hash not in used
            data = view.get(hash)
            assert not [one for one in used if one.encode() in data], (hash, info)
    listed = cli("heads", "--json").text + cli("list", "directory").text
    assert not [one for one in used if one in listed]
    assert cli("list", "directory", "--with-local").text != cli("list", "directory").text


def test_they_are_absent_from_the_mount(cli: Cli, used: set[str]) -> None:
    with Store.open(cli.root) as store:
        for one in used:
            for folder in ("blobs", "trees", "nodes"):
                assert missing(store, f"{folder}/{one}"), folder


def test_they_are_absent_from_commands(cli: Cli, used: set[str]) -> None:
    for one in used:
        for command in (
            ("get", one), ("cat", one[:12]), ("node", "get", one), ("ls", one), ("refs", one),
            ("refs", "--reverse", one), ("walk", one),
        ):  # fmt: skip
            assert "no blob" in cli.refused(*command, code=3), command
        assert cli("has", one, code=3).text == f"{one} no\n"
        assert cli("has", one, "--with-local").text == f"{one} yes\n"
    assert cli("get", hash_bytes(ENV), "--with-local").text.encode() == ENV


async def test_they_are_absent_for_agents(cli: Cli, used: set[str]) -> None:
    with Store.open(cli.root) as store:
        async with connected(Reading(store.shown())) as agent:
            for one in used:
                assert "no blob" in await agent.fault("cas_get", hash=one)
                assert "not in this store" in await agent.fault("cas_put", text="", artifacts=[one])
            await agent.call("cas_put", text="", artifacts=[])
        assert store.blobs.local_among(used) == used, "an artifact does not show it"


def test_they_are_absent_from_pages(cli: Cli, used: set[str]) -> None:
    with serving(cli.root) as web, Store.open(cli.root) as store:
        for one in used:
            for page in (f"/nodes/{one}", f"/blobs/{one}", f"/trees/{one}.tar.zst"):
                assert web.get(page, 404)
        thread = next(threads.newest_first(store))
        steps = [step.hash for step in threads.steps(store, thread)]
        marks = [one.hash for one in checkpoint.listing(store)]
        for hash in [*steps, *marks, thread.record["start"]]:
            page = web.get(f"/nodes/{hash}").text
            assert not [one for one in used if one in page]
            assert "Private, kept in this store" in page
            assert ".env.local</b>" in page
        page = web.get(f"/threads/{thread.id}/steps/1").text
        assert ".env.local</b>" in page
        assert not [one for one in used if one in page]


def test_they_come_back_here(cli: Cli, used: set[str], tmp_path: Path) -> None:
    cli("checkpoint", "restore", "work~1", tmp_path / "back")
    assert (tmp_path / "back/.env").read_bytes() == ENV
    with Store.open(cli.root) as store:
        first, _ = checkpoint.listing(store, "work")
        state = checkpoint.recorded(store, first)
        private = {path for path, _ in local_paths(store, state.tree, state.full)}
        assert private == {b".env", b"src/.env.local"}
        with pytest.raises(NotFound):
            store.shown().node(state.full)


def test_work_with_the_same_bytes_ends_it(cli: Cli, used: set[str], tmp_path: Path) -> None:
    place = write_tree(tmp_path / "other", {"sample.txt": SECOND})
    cli("checkpoint", "create", "other", place)
    assert cli("cat", "other:sample.txt").text.encode() == SECOND
    assert cli("get", hash_bytes(SECOND)).text.encode() == SECOND
    assert "no blob" in cli.refused("get", hash_bytes(ENV), code=3)


def test_what_becomes_work_is_shown(cli: Cli, used: set[str], tmp_path: Path) -> None:
    """Though neither the file nor its directory changes."""
    (cli.root / "config.toml").write_text('[snapshot]\nwork = [".env", ".env.local"]\n')
    cli("checkpoint", "create", "work", tmp_path / "project", "--allow-secret")
    assert cli("cat", "work:.env").text.encode() == SECOND
    assert cli("cat", "work:src/.env.local").text.encode() == ENV
    listed = json.loads(cli("ls", "work", "-R", "--json").text)
    assert {".env", "src/.env.local"} <= {one["path"] for one in listed}
