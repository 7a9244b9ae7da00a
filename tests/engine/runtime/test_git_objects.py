"""A repository of a workspace stays in its store, whatever an agent does with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint
from casfs.checkpoints.create import CreateOptions, create
from casfs.store.store import Store
from casfs.trees import recorded_state, tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.restore import restore
from casfs.workspaces.desk import Desk
from tests.support import planted, readings
from tests.support.desks import desk_at
from tests.support.helpers import write_tree

OWNER = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "gc.auto=0")
PASSWORD = b"DATABASE_PASSWORD=correct-horse\n"
SECRETS = (b"correct-horse", planted.token())
FILES = {
    "a.txt": b"a\n",
    ".env": PASSWORD,
    "notes.txt": planted.settings_file(),
    "d": {"b": b"b\n"},
}
OBJECT_FORMATS = ("sha1", "sha256")


def git(place: Path, *arguments: str) -> str:
    command = ["git", "-C", str(place), *OWNER, *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


@pytest.fixture(params=OBJECT_FORMATS)
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    place = write_tree(tmp_path / "project", FILES)
    git(place, "init", "-q", f"--object-format={request.param}")
    git(place, "add", "a.txt", "d")
    git(place, "commit", "-qm", "first")
    return place


@pytest.fixture
def workspace(disk_store: Store, project: Path, tmp_path: Path) -> Desk:
    options_record = record_all(disk_store, project)
    made = desk_at(disk_store, tmp_path / "workspace")
    made.reset(options_record)
    return made


def record_all(store: Store, place: Path) -> RecordedState:
    """Records a directory with its `.git`, as the start of a thread."""
    made = desk_at(store, place)
    return made.record()


def work(store: Store, workspace: Desk, tmp_path: Path, name: str = "elsewhere") -> Path:
    """Records the workspace, and restores what others get of it."""
    state = workspace.record()
    workspace._begun = state
    workspace.take_report()
    restore(store.shown(), RecordedState(state.tree), tmp_path / name)
    assert readings.leaks(store, *SECRETS) == []
    return tmp_path / name


STEPS = {
    "commit": [["add", "-A"], ["commit", "-qm", "second"]],
    "stash": [["stash", "-uq"], ["stash", "pop", "-q"]],
    "stash kept": [["stash", "-uq"], ["stash", "apply", "-q"]],
    "staged": [["add", "-A"]],
    "staged and taken back": [["add", "-A"], ["reset", "-q"]],
    "split index": [["update-index", "--split-index"], ["add", "-A"], ["commit", "-qm", "second"]],
    "packed": [["add", "-A"], ["commit", "-qm", "second"], ["gc", "-q", "--prune=now"]],
    "packed twice": [
        ["add", "-A"],
        ["commit", "-qm", "second"],
        ["repack", "-adq", "--write-midx"],
        ["commit", "--allow-empty", "-qm", "third"],
        ["gc", "-q"],
    ],
    "removed": [["add", "-A"], ["commit", "-qm", "2"], ["rm", "-q", "notes.txt", ".env"]],
    "branch": [["checkout", "-qb", "other"], ["add", "-A"], ["commit", "-qm", "second"]],
    "tag": [["add", "-A"], ["commit", "-qm", "2"], ["tag", "-am", "of 2", "v2"]],
    "message": [["commit", "--allow-empty", "-qm", planted.settings_file().decode()]],
}


@pytest.mark.parametrize("name", STEPS)
def test_a_repository_stays(disk_store: Store, workspace: Desk, tmp_path: Path, name: str) -> None:
    (workspace.path / "a.txt").write_text("changed\n")
    (workspace.path / "notes.txt").write_bytes(planted.settings_file() + b"more\n")
    for arguments in STEPS[name]:
        git(workspace.path, *arguments)
    elsewhere = work(disk_store, workspace, tmp_path)
    assert {path.name for path in elsewhere.iterdir()} == {"a.txt", "d"}
    # On this machine all of it is there.
    again = tmp_path / "again"
    restore(disk_store, workspace.record(), again)
    assert git(again, "rev-parse", "HEAD") == git(workspace.path, "rev-parse", "HEAD")
    assert git(again, "fsck", "--no-dangling") == ""


def test_what_git_tracked_at_the_start_is_work(disk_store: Store, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "project", FILES)
    git(place, "init", "-q")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "first")
    workspace = desk_at(disk_store, tmp_path / "workspace")
    workspace.reset(record_all(disk_store, place))
    (workspace.path / ".env").write_bytes(PASSWORD + b"MORE=1\n")
    git(workspace.path, "commit", "-qam", "second")
    state = workspace.record()
    assert recorded_state.private_files(disk_store, state) == {}
    assert tree.find(disk_store, state.tree, b".env") is not None
    assert tree.find(disk_store, state.tree, b".git") is None


def test_an_index_of_an_agent_makes_nothing_work_later(
    disk_store: Store, workspace: Desk, tmp_path: Path
) -> None:
    """In a thread that begins with what another one left."""
    git(workspace.path, "add", "-A")
    git(workspace.path, "commit", "-qm", "second")
    work(disk_store, workspace, tmp_path)
    (workspace.path / ".env").unlink()
    left = workspace.record()
    for name, state in (("with", workspace._begun), ("without", left)):
        assert state is not None
        second = desk_at(disk_store, tmp_path / name)
        second.reset(state)
        (second.path / ".env").write_bytes(b"DATABASE_PASSWORD=correct-horse-2\n")
        git(second.path, "commit", "-qam", "third")
        (second.path / ".env").write_bytes(b"DATABASE_PASSWORD=correct-horse-3\n")
        work(disk_store, second, tmp_path, f"{name}-elsewhere")


def test_repositories_at_other_paths(disk_store: Store, workspace: Desk, tmp_path: Path) -> None:
    inner = write_tree(workspace.path / "inner", FILES)
    git(inner, "init", "-q")
    git(inner, "add", "-A")
    git(inner, "commit", "-qm", "first")
    git(inner, "clone", "-q", "--bare", ".", str(workspace.path / "bare.git"))
    git(inner, "init", "-q", "--separate-git-dir", str(workspace.path / "kept"), ".")
    elsewhere = work(disk_store, workspace, tmp_path)
    assert [path.name for path in (elsewhere / "inner").glob(".git/*")] == []
    again = tmp_path / "again"
    restore(disk_store, workspace.record(), again)
    assert git(again / "bare.git", "show", "HEAD:a.txt") == "a\n"


def test_a_repository_that_git_does_not_know_stays(
    disk_store: Store, workspace: Desk, tmp_path: Path
) -> None:
    git(workspace.path, "add", "-A")
    (workspace.path / ".git/HEAD").unlink()
    (workspace.path / ".git/rr-cache").mkdir()
    (workspace.path / ".git/rr-cache/preimage").write_bytes(PASSWORD)
    assert not (work(disk_store, workspace, tmp_path) / ".git").exists()


def test_a_checkpoint_has_no_repository_even_of_a_damaged_one(
    disk_store: Store, project: Path
) -> None:
    for name in ("config", "HEAD"):
        (project / ".git" / name).unlink()
        for defaults in (True, False):
            state = checkpoint.recorded(
                disk_store,
                create(
                    disk_store, "c", project, options=CreateOptions(defaults=defaults)
                ).checkpoint,
            )
            assert tree.find(disk_store, state.tree, b".git") is None
            recorded = tree.find(disk_store, state.full, b".git")
            assert (recorded is None) == defaults


def test_objects_elsewhere_stay(disk_store: Store, workspace: Desk, tmp_path: Path) -> None:
    path = workspace.path
    git(path, "add", "-A")
    git(path, "commit", "-qm", "second")
    git(path, "bundle", "create", "x.bundle", "--all")
    packed = subprocess.run(
        ["git", "-C", path, "pack-objects", "-q", "--all", str(path / "x")], check=True,
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    ).stdout.strip()  # fmt: skip
    shutil.copytree(path / ".git/objects", path / "objects")
    elsewhere = work(disk_store, workspace, tmp_path)
    assert not (elsewhere / "x.bundle").exists()
    assert not (elsewhere / f"x-{packed}.pack").exists()
    assert not [path for path in elsewhere.glob("objects/??/*") if path.is_file()]
