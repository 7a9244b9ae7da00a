"""What an agent's git keeps of private files stays in the store; all else of it travels."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from casfs.store import Store
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.restore import restore
from engine.runtime.workspace import Workspace
from tests.support import planted, readings
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
def workspace(disk_store: Store, project: Path, tmp_path: Path) -> Workspace:
    options_record = record_all(disk_store, project)
    made = Workspace(disk_store, tmp_path / "workspace")
    made.reset(options_record)
    return made


def record_all(store: Store, place: Path) -> RecordedState:
    """Records a directory with its `.git`, as the start of a thread."""
    made = Workspace(store, place)
    return made.record()


def work(store: Store, workspace: Workspace, tmp_path: Path, name: str = "elsewhere") -> Path:
    """Records the workspace, and restores what others get of it."""
    state = workspace.record()
    workspace._begun = state
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
def test_what_git_keeps_of_private_files_stays(
    disk_store: Store, workspace: Workspace, tmp_path: Path, name: str
) -> None:
    (workspace.path / "a.txt").write_text("changed\n")
    (workspace.path / "notes.txt").write_bytes(planted.settings_file() + b"more\n")
    for arguments in STEPS[name]:
        git(workspace.path, *arguments)
    place = work(disk_store, workspace, tmp_path)
    # All that travels is whole but for the private objects.
    told = subprocess.run(["git", "-C", place, "fsck"], capture_output=True, check=False, text=True)
    lines = (told.stdout + told.stderr).splitlines()
    expected = ("missing blob", "broken link from    tree", "              to    blob", "dangling")
    odd = [line for line in lines if not line.startswith((*expected, "notice"))]
    if name != "message":  # the commit itself stays here
        assert odd == []
        assert "first" in git(place, "log", "--all", "--format=%s")
    first = git(workspace.path, "rev-list", "--max-parents=0", "HEAD").strip()
    assert git(place, "show", f"{first}:d/b") == "b\n"


def test_the_history_travels(disk_store: Store, workspace: Workspace, tmp_path: Path) -> None:
    (workspace.path / "new.py").write_text("print()\n")
    (workspace.path / "empty.env").write_text("")
    git(workspace.path, "add", "-A")
    git(workspace.path, "commit", "-qm", "second")
    head = git(workspace.path, "rev-parse", "HEAD").strip()
    report = workspace.take_report()
    place = work(disk_store, workspace, tmp_path)
    report = workspace.take_report()
    assert report.git_commits == {b".git": [head]}
    assert git(place, "show", "HEAD:new.py") == "print()\n"
    assert git(place, "show", "HEAD:empty.env") == ""
    assert not (place / ".env").exists()
    # Its index names the files, and what the directory lacks shows as deleted.
    assert set(git(place, "status", "--porcelain").splitlines()) == {
        " D .env",
        " D empty.env",
        " D notes.txt",
    }


def test_packs_of_later_steps(disk_store: Store, workspace: Workspace, tmp_path: Path) -> None:
    """What stayed here as a loose object stays here in a pack, and so on in the next one."""
    git(workspace.path, "add", "-A")
    git(workspace.path, "commit", "-qm", "second")
    work(disk_store, workspace, tmp_path, "one")
    git(workspace.path, "gc", "-q", "--prune=now")
    work(disk_store, workspace, tmp_path, "two")
    (workspace.path / "c").write_text("c\n")
    git(workspace.path, "add", "-A")
    git(workspace.path, "commit", "-qm", "third")
    place = work(disk_store, workspace, tmp_path, "three")
    assert len(list(place.glob(".git/objects/pack/*.pack"))) == 1
    git(workspace.path, "repack", "-adq")
    place = work(disk_store, workspace, tmp_path, "four")
    assert git(place, "log", "--format=%s").split() == ["third", "second", "first"]
    assert git(place, "show", "HEAD:c") == "c\n"
    # On this machine all of it is there.
    again = tmp_path / "again"
    restore(disk_store, workspace.record(), again)
    assert git(again, "show", "HEAD:.env") == PASSWORD.decode()
    assert git(again, "fsck") == ""


def test_an_unchanged_repository_keeps_its_tree(
    disk_store: Store, workspace: Workspace, tmp_path: Path
) -> None:
    git(workspace.path, "add", "-A")
    git(workspace.path, "commit", "-qm", "second")
    git(workspace.path, "gc", "-q", "--prune=now")
    work(disk_store, workspace, tmp_path)
    first = workspace.record()
    (workspace.path / "c").write_text("c\n")
    second = workspace.record()
    objects = [tree.find(disk_store, state.tree, b".git") for state in (first, second)]
    assert objects[0] == objects[1]


def test_without_git_a_pack_stays(
    disk_store: Store,
    workspace: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    git(workspace.path, "add", "-A")
    git(workspace.path, "commit", "-qm", "second")
    git(workspace.path, "gc", "-q", "--prune=now")
    monkeypatch.setenv("PATH", str(tmp_path))
    state = workspace.record()
    monkeypatch.undo()
    workspace._begun = state
    assert readings.leaks(disk_store, *SECRETS) == []
    packs = tree.find(disk_store, state.tree, b".git/objects/pack")
    assert packs is not None
    assert not tree.load(disk_store, packs.digest.hash)  # type: ignore[union-attr]


def test_what_git_tracked_at_the_start_is_work(disk_store: Store, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "project", FILES)
    git(place, "init", "-q")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "first")
    workspace = Workspace(disk_store, tmp_path / "workspace")
    workspace.reset(record_all(disk_store, place))
    (workspace.path / ".env").write_bytes(PASSWORD + b"MORE=1\n")
    git(workspace.path, "commit", "-qam", "second")
    state = workspace.record()
    assert state.local is None
    assert tree.find(disk_store, state.tree, b".env") is not None


@pytest.mark.parametrize("damage", [b"", b"x" * 40, b"\x78\x9c broken"])
def test_a_damaged_object_stays(
    disk_store: Store, workspace: Workspace, tmp_path: Path, damage: bytes
) -> None:
    git(workspace.path, "add", "-A")
    blob = git(workspace.path, "rev-parse", ":.env").strip()
    path = workspace.path / ".git/objects" / blob[:2] / blob[2:]
    path.unlink()
    path.write_bytes(damage)
    place = work(disk_store, workspace, tmp_path)
    assert not (place / path.relative_to(workspace.path)).exists()


def test_a_repository_that_an_agent_makes(
    disk_store: Store, workspace: Workspace, tmp_path: Path
) -> None:
    inner = write_tree(workspace.path / "inner", FILES)
    git(inner, "init", "-q")
    git(inner, "add", "-A")
    git(inner, "commit", "-qm", "first")
    git(inner, "clone", "-q", "--bare", ".", str(workspace.path / "bare.git"))
    place = work(disk_store, workspace, tmp_path)
    assert git(place / "inner", "show", "HEAD:a.txt") == "a\n"
    assert git(place / "bare.git", "show", "HEAD:a.txt") == "a\n"
