"""What an agent's git keeps of private files stays in the store; all else of it travels."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.git.private_objects import staying_objects
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
    workspace.record()
    report = workspace.take_report()
    place = work(disk_store, workspace, tmp_path)
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


def test_an_index_of_an_agent_makes_nothing_work_later(
    disk_store: Store, workspace: Workspace, tmp_path: Path
) -> None:
    """In a thread that begins with what another one left."""
    git(workspace.path, "add", "-A")
    git(workspace.path, "commit", "-qm", "second")
    work(disk_store, workspace, tmp_path)
    (workspace.path / ".env").unlink()
    left = workspace.record()
    for name, state in (("with", workspace._begun), ("without", left)):
        assert state is not None
        second = Workspace(disk_store, tmp_path / name)
        second.reset(state)
        (second.path / ".env").write_bytes(b"DATABASE_PASSWORD=correct-horse-2\n")
        git(second.path, "commit", "-qam", "third")
        (second.path / ".env").write_bytes(b"DATABASE_PASSWORD=correct-horse-3\n")
        work(disk_store, second, tmp_path, f"{name}-elsewhere")


def test_what_was_derived_is_read_when_it_is_work(
    disk_store: Store, workspace: Workspace, tmp_path: Path
) -> None:
    (workspace.path / "package.json").write_text("{}")
    (workspace.path / "node_modules").mkdir()
    inner = write_tree(workspace.path / "node_modules/x", {".env": PASSWORD, "a": b"a"})
    git(inner, "init", "-q")
    git(inner, "add", "-A")
    git(inner, "commit", "-qm", "first")
    (inner / ".env").write_text("X=1\n")
    work(disk_store, workspace, tmp_path)
    (workspace.path / "package.json").unlink()
    place = work(disk_store, workspace, tmp_path, "later")
    assert git(place / "node_modules/x", "show", "HEAD:a") == "a"


def test_paths_of_another_repository_are_not_those_of_the_first(
    disk_store: Store, workspace: Workspace, tmp_path: Path
) -> None:
    path = workspace.path
    (path / ".git/modules").mkdir()
    git(path, "init", "-q", "--separate-git-dir", str(path / ".git/modules/lib"), str(path / "lib"))
    for content in (planted.settings_file(), b"clean\n"):
        (path / "lib/a.txt").write_bytes(content)
        (path / "lib/.env").write_bytes(PASSWORD if content != b"clean\n" else b"X=1\n")
        git(path / "lib", "add", "-A")
        git(path / "lib", "commit", "-qm", "of lib")
    work(disk_store, workspace, tmp_path)


@pytest.mark.parametrize("name", [
    "objects/tmp_objdir-incoming-AQFadL/b1/ba61", "objects/pack/pack-x.pack.bak",
    "rr-cache/0f/preimage", "lfs/objects/ab/cd/abcd",
])  # fmt: skip
def test_what_git_leaves_behind_stays(
    disk_store: Store, workspace: Workspace, tmp_path: Path, name: str
) -> None:
    file = workspace.path / ".git" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(PASSWORD)
    assert not (work(disk_store, workspace, tmp_path) / ".git" / name).exists()


def test_objects_elsewhere_stay(disk_store: Store, workspace: Workspace, tmp_path: Path) -> None:
    path = workspace.path
    git(path, "add", "-A")
    git(path, "commit", "-qm", "second")
    git(path, "bundle", "create", "x.bundle", "--all")
    packed = subprocess.run(
        ["git", "-C", path, "pack-objects", "-q", "--all", str(path / "x")], check=True,
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    ).stdout.strip()  # fmt: skip
    shutil.copytree(path / ".git/objects", path / ".git/objects.bak")
    place = work(disk_store, workspace, tmp_path)
    assert not (place / "x.bundle").exists()
    assert not (place / f"x-{packed}.pack").exists()
    assert not [one for one in place.glob(".git/objects.bak/??/*") if one.is_file()]


def test_a_pack_is_read_whatever_its_index_says(
    disk_store: Store, workspace: Workspace, tmp_path: Path
) -> None:
    git(workspace.path, "gc", "-q", "--prune=now")
    [old] = workspace.path.glob(".git/objects/pack/*.idx")
    known = old.read_bytes()
    work(disk_store, workspace, tmp_path, "one")
    git(workspace.path, "add", "-A")
    git(workspace.path, "commit", "-qm", "second")
    git(workspace.path, "gc", "-q", "--prune=now")
    [index] = workspace.path.glob(".git/objects/pack/*.idx")
    index.chmod(0o644)
    index.write_bytes(known)
    work(disk_store, workspace, tmp_path, "two")
    index.chmod(0o755)
    work(disk_store, workspace, tmp_path, "three")
    index.unlink()
    work(disk_store, workspace, tmp_path, "four")


def test_an_index_that_changes_alone_shows_nothing(
    disk_store: Store, workspace: Workspace, tmp_path: Path
) -> None:
    git(workspace.path, "add", "-A")
    git(workspace.path, "commit", "-qm", "second")
    git(workspace.path, "gc", "-q", "--prune=now")
    work(disk_store, workspace, tmp_path, "one")
    [index] = workspace.path.glob(".git/objects/pack/*.idx")
    index.chmod(0o755)
    work(disk_store, workspace, tmp_path, "two")
    (workspace.path / "c").write_text("c")
    git(workspace.path, "add", "-A")
    git(workspace.path, "commit", "-qm", "third")
    git(workspace.path, "gc", "-q", "--prune=now")
    place = work(disk_store, workspace, tmp_path, "three")
    assert git(place, "show", "HEAD:c") == "c"


@pytest.mark.parametrize("lie", ["of size", "behind", "of name"])
def test_a_lying_object_stays(
    disk_store: Store, workspace: Workspace, tmp_path: Path, lie: str
) -> None:
    content = zlib.compress(b"blob 0\0" + PASSWORD)
    if lie == "behind":
        content = zlib.compress(b"blob 2\0a\n") + PASSWORD
    elif lie == "of name":
        content = zlib.compress(b"blob %d\0" % len(PASSWORD) + PASSWORD)
    length = len(git(workspace.path, "rev-parse", "HEAD").strip())
    path = workspace.path / ".git/objects/0f" / ("e" * (length - 2))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    place = work(disk_store, workspace, tmp_path)
    assert not (place / path.relative_to(workspace.path)).exists()


def test_a_bomb_of_trees_ends_nothing(
    disk_store: Store, workspace: Workspace, tmp_path: Path
) -> None:
    blob = git(workspace.path, "hash-object", "-w", "a.txt").strip()
    row, below = f"100644 blob {blob}", ""
    for _ in range(9):
        rows = "".join(f"{row}\tn{number}\n" for number in range(10))
        done = subprocess.run(
            ["git", "-C", workspace.path, "mktree"], input=rows, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        below = done.stdout.strip()
        row = f"040000 tree {below}"
    git(workspace.path, "commit-tree", "-m", "bomb", below)
    work(disk_store, workspace, tmp_path)


def test_a_damaged_index_of_a_pack_ends_no_step(
    disk_store: Store, workspace: Workspace, tmp_path: Path
) -> None:
    git(workspace.path, "add", "-A")
    git(workspace.path, "commit", "-qm", "second")
    git(workspace.path, "gc", "-q", "--prune=now")
    [index] = workspace.path.glob(".git/objects/pack/*.idx")
    index.chmod(0o644)
    index.write_bytes(b"damaged")
    work(disk_store, workspace, tmp_path, "one")
    state = workspace._begun
    assert state is not None
    assert staying_objects(disk_store, state)[b".git"].commits == []
    write_tree(workspace.path / ".git/objects/0f", {"e" * 38: b"x"})
    work(disk_store, workspace, tmp_path, "two")
