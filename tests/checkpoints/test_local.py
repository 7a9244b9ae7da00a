"""Private and derived files of a directory: a checkpoint brings them back, and shows them never."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

import casfs
from casfs.checkpoints import checkpoint, create
from casfs.digest import Digest
from casfs.directories import operations
from casfs.errors import NotFound, Refused
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Link
from casfs.maintenance import archive
from casfs.mcp.writing import Writing
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from tests.support import planted
from tests.support.engine import Cli
from tests.support.fuse import at, walk
from tests.support.helpers import read_tree, write_tree
from tests.support.mcp import connected
from tests.support.new_store import init_store

KEY = b"KEY=\xff\0 first\r\n"
MODES = {".env": 0o600, "d/id_rsa": 0o400}
PROJECT: dict[str, Any] = {
    ".env": KEY,
    "a": b"needle\n",
    "d": {"id_rsa": b"needle of a key\n", "b": b"b"},
    "package.json": b"{}",
    "node_modules": {"m": b"m"},
}
WORK = {"a", "d", "d/b", "package.json"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = write_tree(tmp_path / "project", PROJECT)
    for path, mode in MODES.items():
        (place / path).chmod(mode)
    return place


def modes(place: Path) -> dict[str, int]:
    return {path: stat.S_IMODE((place / path).stat().st_mode) for path in MODES}


def shown(tree_: dict[Any, Any], above: str = "") -> set[str]:
    """The paths of a literal tree."""
    found = set()
    for name, item in tree_.items():
        path = above + (name if isinstance(name, str) else name.decode())
        found.add(path)
        if isinstance(item, dict):
            found |= shown(item, f"{path}/")
    return found


def recorded(store: Store, name: str) -> RecordedState:
    found = checkpoint.latest(store, name)
    assert found is not None
    return checkpoint.recorded(store, found)


def put(place: Path, name: str, data: bytes) -> None:
    """Writes a file, whatever its mode is, which stays."""
    mode = stat.S_IMODE((place / name).stat().st_mode)
    (place / name).chmod(0o600)
    (place / name).write_bytes(data)
    (place / name).chmod(mode)


# -- create and restore --------------------------------------------------------------------


def test_private_files_come_back_into_a_new_directory(
    cli: Cli, project: Path, tmp_path: Path
) -> None:
    cli("checkpoint", "create", "w", project)
    cli("checkpoint", "restore", "w", tmp_path / "again")
    assert shown(read_tree(tmp_path / "again")) == WORK | set(MODES)
    assert (tmp_path / "again/.env").read_bytes() == KEY
    assert modes(tmp_path / "again") == MODES


def test_an_older_checkpoint_brings_back_its_private_files(cli: Cli, project: Path) -> None:
    first = cli("checkpoint", "create", "w", project).word
    put(project, ".env", b"KEY=2\n")
    second = cli("checkpoint", "create", "w", project).word
    with Store.open(cli.root) as store:
        older, newer = (checkpoint.find(store, f"w@{one}") for one in (first, second))
        assert older.root == newer.root
        assert checkpoint.recorded(store, older) != checkpoint.recorded(store, newer)
    cli("checkpoint", "restore", f"w@{first}", project)
    assert ((project / ".env").read_bytes(), modes(project)) == (KEY, MODES)
    cli("checkpoint", "restore", "w", project)
    assert (project / ".env").read_bytes() == b"KEY=2\n"


def test_a_change_of_a_private_file_is_a_local_change(cli: Cli, project: Path) -> None:
    first = cli("checkpoint", "create", "w", project).word
    put(project, ".env", b"KEY=2\n")
    cli("checkpoint", "create", "w", project)
    put(project, ".env", b"KEY=mine\n")
    said = cli("checkpoint", "restore", f"w@{first}", project, code=4)
    assert "local changes would be overwritten: .env" in said.err
    assert (project / ".env").read_bytes() == b"KEY=mine\n"

    cli("checkpoint", "restore", f"w@{first}", project, "--force")
    assert ((project / ".env").read_bytes(), modes(project)) == (KEY, MODES)
    with Store.open(cli.root) as store:
        (operation,) = operations.log_of(store, project).operations
        entry = tree.find(store, operation.before.tree, b".env")
        assert isinstance(entry, File)
        hash = entry.digest.hash
        assert store.get(hash) == b"KEY=mine\n"
        assert not store.shown().blobs.info([hash, operation.before.tree])
    cli("undo", project)
    assert ((project / ".env").read_bytes(), modes(project)) == (b"KEY=mine\n", MODES)


def test_a_private_file_of_one_path_is_restored(cli: Cli, project: Path) -> None:
    cli("checkpoint", "create", "w", project)
    (project / ".env").unlink()
    (project / "a").unlink()
    cli("checkpoint", "restore", "w", project, ".env")
    assert ((project / ".env").read_bytes(), modes(project)) == (KEY, MODES)
    assert not (project / "a").exists()


def test_a_changed_private_file_makes_a_checkpoint_of_the_same_work(
    disk_store: Store, project: Path
) -> None:
    def made() -> create.Created:
        return create.create(
            disk_store, "w", project, options=create.CreateOptions(skip_if_unchanged=True)
        )

    first, again = made(), made()
    assert (again.skipped, again.checkpoint) == (True, first.checkpoint)
    put(project, ".env", b"KEY=2\n")
    second = made()
    assert not second.skipped
    assert second.checkpoint.root == first.checkpoint.root
    assert second.stats == {**first.stats, "added": 0}
    assert recorded(disk_store, "w") != checkpoint.recorded(disk_store, first.checkpoint)


def test_with_derived_brings_back_what_a_tool_made(cli: Cli, project: Path, tmp_path: Path) -> None:
    cli("checkpoint", "create", "w", project, "--with-derived")
    cli("checkpoint", "restore", "w", tmp_path / "again")
    assert read_tree(tmp_path / "again") == read_tree(project)
    with Store.open(cli.root) as store:
        work = {path.decode() for path, _ in tree.walk(store, recorded(store, "w").tree)}
    assert work == WORK


def test_with_derived_leaves_git_out(cli: Cli, project: Path, tmp_path: Path) -> None:
    for place in (project, project / "d"):
        subprocess.run(["git", "init", "-q", place], check=True)
    cli("checkpoint", "create", "w", project, "--with-derived")
    cli("checkpoint", "restore", "w", tmp_path / "again")
    assert [*(tmp_path / "again").rglob(".git")] == []
    assert (tmp_path / "again/node_modules/m").exists()


def test_allow_secret_records_it_as_work(cli: Cli, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "g", {"conf": planted.settings_file(), ".env": b"K=1\n"})
    subprocess.run(["git", "init", "-q", place], check=True)

    def work() -> list[bytes]:
        with Store.open(cli.root) as store:
            return list(tree.load(store, recorded(store, "w").tree))

    said = cli("checkpoint", "create", "w", place)
    assert (work(), "conf" in said.err) == ([], True)
    said = cli("checkpoint", "create", "w", place, "--allow-secret")
    assert (work(), "conf" in said.err) == ([b"conf"], False)
    cli("checkpoint", "create", "w", place)
    assert work() == [b"conf"], "the version that was allowed is the last one of the work"


# -- what shows it -------------------------------------------------------------------------


@pytest.fixture
def made(cli: Cli, project: Path) -> str:
    """A checkpoint of the project, with derived files, and one before it of less."""
    empty = write_tree(project.with_name("less"), {".env": b"KEY=0\n"})
    cli("checkpoint", "create", "w", empty)
    id = cli("checkpoint", "create", "w", project, "--with-derived").word
    return f"w@{id}"


HIDDEN = (".env", "id_rsa", "node_modules", "KEY=")


def test_no_command_shows_what_is_here_only(cli: Cli, made: str) -> None:
    for command in (
        ["ls", "-l", made],
        ["ls", f"{made}:d"],
        ["checkpoint", "list", "--json"],
        ["search", "package", "--json"],
    ):
        text = cli(*command).text
        assert text
        assert not [name for name in HIDDEN if name in text], command
    # A comparison has private files, marked; what is derived it has not.
    marked = {line for line in cli("diff", "w~1", "w").text.splitlines() if "(private)" in line}
    assert marked == {"M .env  (private)", "A d/id_rsa  (private)"}
    assert "node_modules" not in cli("diff", "w~1", "w", "--json").text
    assert cli("search", "id_rsa").text == cli("search", "node_modules").text == ""
    for path in (".env", "d/id_rsa", "node_modules/m"):
        cli("cat", f"{made}:{path}", code=3)
    cli("blame", f"{made}:node_modules/m", code=3)
    assert made.partition("@")[0] in cli("blame", f"{made}:d/id_rsa").text


@pytest.mark.parametrize("with_local", [False, True])
def test_an_export_has_it_where_a_person_asks(
    cli: Cli, made: str, tmp_path: Path, with_local: bool
) -> None:
    cli("export", "w", "-o", tmp_path / "out", *["--with-local"] * with_local)
    with init_store(tmp_path / "other") as other, Store.open(cli.root) as store:
        archive.load(other, tmp_path / "out", with_local=with_local)
        state = recorded(store, "w")
        assert recorded(other, "w") == (
            state if with_local else state._replace(local=None, local_times=None)
        )
        key, module = Digest.of(KEY).hash, Digest.of(b"m").hash
        assert [bool(other.blobs.info([one])) for one in (key, module)] == [with_local] * 2


def test_an_export_by_its_hash_is_of_nothing_unless_a_person_asks(
    cli: Cli, made: str, tmp_path: Path
) -> None:
    key = Digest.of(KEY).hash
    assert "no blob" in cli.refused("export", key, "-o", tmp_path / "out", code=3)
    assert not (tmp_path / "out").exists()
    cli("export", key, "-o", tmp_path / "out", "--with-local")


def found_below(store: Store, path: str, *, with_local: bool) -> set[str]:
    """The paths below a directory of a mount."""
    top = root(StoreReader(store, with_local=with_local), Stats())
    return {where[1:] for where, vnode in walk(at(store, path, top)) if not isinstance(vnode, Link)}


@pytest.mark.parametrize("with_local", [False, True])
def test_a_mount_has_it_where_a_person_asks(cli: Cli, made: str, with_local: bool) -> None:
    id = made.removeprefix("w@")
    more = {*MODES, "node_modules", "node_modules/m"} if with_local else set()
    with Store.open(cli.root) as store:
        assert found_below(store, f"trees/w/{id}", with_local=with_local) == WORK | more


def test_the_python_api_shows_the_work_and_restores_all(
    cli: Cli, made: str, tmp_path: Path
) -> None:
    with casfs.open(cli.root) as opened:
        newest = opened.checkpoints.find(made)
        for named in (made, newest):
            assert {entry.path for entry in opened.trees.walk(named)} == WORK
            with pytest.raises(NotFound):
                opened.trees.read(named, ".env")
        assert {change.path for change in opened.trees.diff("w~1", made)} == WORK - {"d"}
        for number, named in enumerate((made, newest)):
            target = tmp_path / str(number)
            opened.trees.restore(named, target)
            assert (modes(target), (target / ".env").read_bytes()) == (MODES, KEY)
            assert (target / "node_modules/m").exists()
        (target / ".env").write_bytes(b"mine")
        with pytest.raises(Refused, match=r"overwritten: \.env"):
            opened.trees.restore("w~1", target)
        opened.trees.restore(opened.trees.resolve(made), tmp_path / "bare")
        assert shown(read_tree(tmp_path / "bare")) == WORK, "a hash of the work is the work"


async def test_mcp_shows_the_work_and_restores_all(cli: Cli, made: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with Store.open(cli.root) as store:
        async with connected(Writing(store, directories=[place])) as agent:
            listed = await agent.call("list_tree", tree=made)
            assert not [name for name in HIDDEN if name in str(listed)]
            said = await agent.fault("read_file", file=f"{made}:.env")
            assert "KEY" not in said
            await agent.call("restore", tree=made, directory="again")
    assert (modes(place / "again"), (place / "again/.env").read_bytes()) == (MODES, KEY)
