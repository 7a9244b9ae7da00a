"""The command line on a shared store: two directories are two machines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from casfs.system import daemon_socket, store_mounts
from tests.support.engine import ONE, Answer, Cli
from tests.support.postgres_server import PostgresServer
from tests.support.programs import needs_device


@pytest.fixture
def objects(tmp_path: Path) -> str:
    return f"file://{tmp_path}/objects"


def test_init_makes_and_joins(cli: Cli, tmp_path: Path, database_url: str, objects: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    cli("--store", one, "init", database_url, "--objects", objects, "--dry-run")
    assert not one.exists()
    assert not (tmp_path / "objects").exists()
    made = cli("--store", one, "init", database_url, "--objects", objects, "--json").json
    assert made["shared"]["joined"] is False
    assert "directory" in made["types"]
    planned = cli("--store", two, "init", database_url, "--dry-run", "--json").json
    assert planned["shared"] == made["shared"] | {"joined": True}
    assert not two.exists()
    assert cli("--store", two, "init", database_url).word == str(two)
    assert cli("--store", two, "init").word == str(two)  # again, by its config.toml
    assert (two / "format").read_text() == "casfs 5 shared\n"
    listed = [cli("--store", root, "workflow", "list").out for root in (one, two)]
    assert listed[0] == listed[1]
    hash = cli("--store", one, "put", __file__).word
    assert cli("--store", two, "get", hash).out == Path(__file__).read_bytes()


def test_a_workflow_that_was_removed_does_not_come_back_with_a_machine(
    cli: Cli, tmp_path: Path, database_url: str, objects: str
) -> None:
    cli("--store", tmp_path / "one", "init", database_url, "--objects", objects)
    cli("--store", tmp_path / "one", "workflow", "rm", "hello")
    cli("--store", tmp_path / "two", "init", database_url)
    assert b"hello" not in cli("--store", tmp_path / "two", "workflow", "list").out


def test_init_refuses(
    cli: Cli, tmp_path: Path, postgres: PostgresServer, database_url: str, objects: str
) -> None:
    def refused(*arguments: object, code: int = 4, store: str = "new") -> str:
        found = cli.refused("--store", tmp_path / store, "init", *arguments, code=code)
        assert not (tmp_path / "new").exists()
        return found

    secret = database_url.replace("casfs@", "casfs:s3cret@")
    line = refused(secret)
    assert "PGPASSWORD" in line
    assert "s3cret" not in line
    assert "make it with createdb" in refused(f"{database_url}x", code=3)
    assert "with --objects" in refused(database_url, code=3)
    assert "does not answer" in refused("postgresql://127.0.0.1:1/db", code=1)
    assert 'role "other"' in refused(database_url.replace("casfs@", "other@"))
    assert "not the URL" in refused(f"{database_url}?foo=1")
    assert "write postgresql://" in refused("mysql://host/db")
    assert "s4://b" in refused(database_url, "--objects", "s4://b")
    refused("--objects", objects, code=2)
    name = database_url.rpartition("/")[2]
    postgres.execute(f"CREATE DATABASE {name}_l TEMPLATE template0 ENCODING 'LATIN1'")
    try:
        assert "-E UTF8" in refused(f"{database_url}_l", "--objects", objects)
    finally:
        postgres.execute(f"DROP DATABASE {name}_l WITH (FORCE)")
    assert cli("--store", tmp_path / "one", "init", database_url, "--objects", objects).code == 0
    assert objects in refused(database_url, "--objects", f"{objects}2")
    assert "another --store" in refused(f"{database_url}x", store="one")
    assert "another --store" in refused(database_url, store="store")
    postgres.execute("UPDATE casfs.store SET format = 'casfs shared 99'", name)
    assert "casfs shared 99" in refused(database_url)
    postgres.execute("ALTER TABLE casfs.store DROP COLUMN region", name)
    assert "casfs shared 99" in refused(database_url)


def test_a_user_without_rights_leaves_nothing(
    cli: Cli, tmp_path: Path, postgres: PostgresServer, database_url: str, objects: str
) -> None:
    name = database_url.rpartition("/")[2]
    postgres.execute(f"CREATE USER {name}")
    try:
        url = database_url.replace("casfs@", f"{name}@")
        line = cli.refused("--store", tmp_path / "new", "init", url, "--objects", objects, code=4)
        assert "GRANT" in line
        assert not (tmp_path / "new").exists()
    finally:
        postgres.execute(f"DROP USER {name}")


def test_status_shows_servers_and_machines(
    cli: Cli, tmp_path: Path, postgres: PostgresServer, database_url: str, objects: str
) -> None:
    one = tmp_path / "one"
    cli("--store", one, "init", database_url, "--objects", objects)
    cli("--store", tmp_path / "two", "init", database_url)
    (tmp_path / "file").write_bytes(os.urandom(3000))
    cli("--store", tmp_path / "two", "put", tmp_path / "file")
    with psycopg.connect(database_url) as held:
        held.execute("SELECT pg_current_xact_id(), pg_sleep(0.2)")
        cli("--store", one, "workflow", "rm", "hello")
        shown = cli("--store", one, "status", "--json").json["shared"]
        assert shown["lag"]["unreadMoves"] > 0
        assert shown["lag"]["oldestTransactionS"] >= 0.2
    shown = cli("--store", one, "status", "--json").json["shared"]
    assert shown["lag"]["unreadMoves"] == 0
    assert shown["database"]["roundTripMs"] > 0
    assert {(one["store"], one["here"], one["running"]) for one in shown["machines"]} == {
        (str(one), True, 0),
        (str(tmp_path / "two"), False, 0),
    }
    lines = cli("--store", one, "status").out.decode()
    assert f"{tmp_path}/two, no daemon" in lines
    (tmp_path / "objects").rename(tmp_path / "away")
    (tmp_path / "objects").write_text("not a directory")
    postgres.stop()
    away = cli("--store", one, "status", "--json").json["shared"]
    assert "does not answer" in away["database"]["fault"]
    assert away["objects"]["fault"]
    found = cli("--store", one, "status")
    assert "does not answer" in found.err
    assert "a local cache" in found.out.decode()


@pytest.fixture
def team(cli: Cli, tmp_path: Path, database_url: str, objects: str) -> Iterator[tuple[Path, Path]]:
    """Two machines' directories of one shared store; their daemons end with the test."""
    roots = tmp_path / "one", tmp_path / "two"
    cli("--store", roots[0], "init", database_url, "--objects", objects)
    cli("--store", roots[1], "init", database_url)
    try:
        yield roots
    finally:
        for root in roots:
            if daemon_socket.runs(root):
                cli("--store", root, "daemon", "stop")


def ids(answer: Answer) -> list[str]:
    return [one["id"] for one in answer.json]


@needs_device
def test_the_demo(cli: Cli, team: tuple[Path, Path], tmp_path: Path) -> None:
    """The demo itself compares what it shows; it runs on the first machine, the daemon of the
    second may take its thread."""
    one, two = team
    mounts = {one: tmp_path / "mnt1", two: tmp_path / "mnt2"}
    mounts[two].mkdir()
    cli("--store", two, "daemon")
    try:
        shown = cli("--store", one, "demo", mounts[one]).out
        assert shown.count(b"\nidentical\n") == 2
        cli("--store", two, "mount", mounts[two])
        listed = cli("--store", two, "thread", "list", "--json")
        assert ids(listed) == ids(cli("--store", one, "thread", "list", "--json"))
        (id,) = ids(listed)
        status = mounts[two] / "threads" / id / "status"
        assert status.read_text() == "succeeded\n"
        first, second = (
            {path.relative_to(at): path.read_bytes() for path in at.rglob("*") if path.is_file()}
            for at in (point / "threads" / id / "steps" for point in mounts.values())
        )
        assert len(first) > 50
        assert first == second
    finally:
        for root, point in mounts.items():
            if point in store_mounts.mounted(root):
                cli("--store", root, "umount", point)


def test_a_store_moves_into_a_shared_one(
    cli: Cli, team: tuple[Path, Path], tmp_path: Path, project: Path
) -> None:
    cli("checkpoint", "create", "work", project)
    cli("checkpoint", "create", "docs", project / "src")
    (tmp_path / "own.json").write_text(json.dumps(ONE))
    cli("workflow", "add", tmp_path / "own.json")
    for root in (cli.root, team[0]):
        cli("--store", root, "remote", "add", "move", f"file://{tmp_path}/remote")
    cli("push", "move", code=2)
    pushed = cli("push", "move", "--all", "--json").json
    assert "workflows/sample" in pushed["refs"]
    assert len(pushed["refs"]) == 3
    assert "without --lazy" in cli("--store", team[0], "pull", "move", "--lazy", code=4).err
    cli("--store", team[0], "pull", "move")
    cli("--store", team[1], "checkpoint", "restore", "work", tmp_path / "again")
    assert cli("--store", team[1], "tree", "build", tmp_path / "again").word == (
        cli("tree", "build", project).word
    )
    assert b"sample" in cli("--store", team[1], "workflow", "list").out
    back = cli("--store", team[0], "push", "move", "--all", "--json").json
    assert not {*pushed["refs"]} & {*back["refs"]}


def test_with_the_database_away_a_command_ends_with_one_line(
    cli: Cli, team: tuple[Path, Path], postgres: PostgresServer
) -> None:
    postgres.stop()
    assert "does not answer" in cli("--store", team[0], "put", __file__, code=1).err
