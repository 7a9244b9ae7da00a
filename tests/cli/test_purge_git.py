"""What git keeps of what is purged: named, and purged where that is asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from casfs.store.store import Store
from casfs.trees.restore.restore import restore
from casfs.workspaces import registry
from tests.support import readings
from tests.support.desks import desk_at
from tests.support.engine import Cli
from tests.support.helpers import write_tree
from tests.support.thread_example import make_thread

TEXT = b"Tr0ub4dor&3-staple"
LINES = b"-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA0Z3VS5JJ\nZ4wHqW8q2LrT9aQ1\n-----END KEY-----\n"
OWNER = ("-c", "user.name=T", "-c", "user.email=t@example.org")
COMMITS = [["add", "-A"], ["commit", "-qm", f"with {TEXT.decode()}"]]
FORMS = {
    "loose": COMMITS,
    "packed": [*COMMITS, ["gc", "-q", "--prune=now"]],
    "packed with its kin": [*COMMITS, ["repack", "-adq", "--write-bitmap-index"]],
}


def git(place: Path, *arguments: str) -> str:
    command = ["git", "-C", str(place), *OWNER, *arguments]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


@pytest.fixture(params=FORMS)
def thread(cli: Cli, opened: Store, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A thread whose agent has committed the text; returns its id."""
    place = write_tree(tmp_path / "place", {"conf.py": b"x", "other.py": b"1\n"})
    git(place, "init", "-q")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "first")
    workspace = desk_at(opened, tmp_path / "workspace")
    workspace.reset(desk_at(opened, place).record())
    conf = workspace.path / "conf.py"
    conf.write_bytes(b"PASSWORD = '" + TEXT + b"'\nNAME = 1\n")
    (workspace.path / "key.txt").write_bytes(LINES)
    for arguments in FORMS[request.param]:
        git(workspace.path, *arguments)
    example = make_thread(opened)
    example.step("a", "done", state=workspace.record())
    return example.id


def restored(cli: Cli, thread: str, place: Path) -> Path:
    cli("checkpoint", "restore", f"{thread}@1", place)
    return place


def test_a_file_is_purged_and_git_named(
    cli: Cli, opened: Store, thread: str, tmp_path: Path
) -> None:
    blob = git(tmp_path / "workspace", "rev-parse", "HEAD:conf.py").strip()
    done = cli("purge", f"{thread}@1:conf.py", "--force")
    assert f"the content is still in the git blob {blob}; --with-git purges it here" in done.err
    assert readings.leaks(opened, b"PASSWORD", whole=True)
    again = cli("purge", "--text", "--force", "--with-git", stdin=TEXT)
    assert f"git blob {blob}" in again.text
    assert readings.leaks(opened, TEXT, whole=True) == []
    assert cli("fsck").out is not None
    place = restored(cli, thread, tmp_path / "after")
    assert git(place, "show", f"{_first(tmp_path)}:other.py") == "1\n"
    told = subprocess.run(["git", "-C", place, "fsck"], capture_output=True, text=True, check=False)
    assert blob in told.stdout + told.stderr


def test_a_file_is_purged_with_git(cli: Cli, opened: Store, thread: str, tmp_path: Path) -> None:
    cli("purge", f"{thread}@1:conf.py", "--force", "--with-git")
    assert readings.leaks(opened, b"PASSWORD", whole=True) == []
    place = restored(cli, thread, tmp_path / "after")
    assert git(place, "show", f"{_first(tmp_path)}:other.py") == "1\n"
    assert "with" in git(place, "log", "-1", "--format=%s")


def test_a_text_is_named_in_git(cli: Cli, opened: Store, thread: str, tmp_path: Path) -> None:
    commit = git(tmp_path / "workspace", "rev-parse", "HEAD").strip()
    asked = cli("purge", "--text", stdin=TEXT, code=4)
    assert f"git commit {commit} {thread}@1:.git/objects/" in asked.text
    forced = cli("purge", "--text", "--force", stdin=TEXT)
    assert f"the text is still in the git commit {commit}; --with-git purges it" in forced.err
    assert readings.leaks(opened, TEXT, whole=True)
    found = cli("purge", "--text", "--force", "--with-git", "--json", stdin=TEXT).json
    assert {one["kind"].partition(" ")[0] for one in found["found"]} == {"git"}
    assert readings.leaks(opened, TEXT, whole=True) == []


def test_a_text_of_many_lines(cli: Cli, opened: Store, thread: str) -> None:
    cli("purge", "--text", "--force", "--with-git", stdin=LINES)
    assert readings.leaks(opened, b"MIIEpAIBAAKCAQEA0Z3VS5JJ", whole=True) == []
    assert readings.leaks(opened, TEXT, whole=True)


def _first(tmp_path: Path) -> str:
    return git(tmp_path / "workspace", "rev-list", "--max-parents=0", "HEAD").strip()


def test_copies_under_other_names(cli: Cli, opened: Store, tmp_path: Path) -> None:
    """A pack without its index, a bundle, and what a killed git has left."""
    place = write_tree(tmp_path / "place", {"conf.py": b"PASSWORD = '" + TEXT + b"'\n"})
    git(tmp_path, "init", "-q", str(place))
    git(place, "add", "-A")
    git(place, "commit", "-qm", "first")
    blob = git(place, "rev-parse", "HEAD:conf.py").strip()
    loose = (place / ".git/objects" / blob[:2] / blob[2:]).read_bytes()
    git(place, "bundle", "create", "all.bundle", "--all")
    git(place, "gc", "-q", "--prune=now")
    next(place.glob(".git/objects/pack/*.idx")).unlink()
    (place / ".git/objects/tmp_obj_Xy7f").write_bytes(loose)
    desk_at(opened, place).record()
    assert len(readings.leaks(opened, TEXT, whole=True)) >= 4
    found = cli("purge", "--text", "--force", "--with-git", "--json", stdin=TEXT).json["found"]
    assert [one["kind"] for one in found].count(f"git blob {blob}") == 3
    assert readings.leaks(opened, TEXT, whole=True) == []


def test_what_git_keeps_of_an_output_of_an_action(
    cli: Cli, opened: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_tree(tmp_path / "place", {".env": b"PASSWORD=" + TEXT + b"\n"})
    monkeypatch.chdir(place)
    script = "git init -q out; cp .env out/.env; cd out; git add -A; git rm -q --cached .env"
    cli("action", "run", "--cache", "--input", ".", "--output", "out", "--", "sh", "-c", script)
    assert readings.leaks(opened, TEXT) == []
    assert readings.leaks(opened, TEXT, whole=True)


def test_a_workspace_of_a_step_keeps_its_repository(
    cli: Cli, opened: Store, tmp_path: Path
) -> None:
    place = write_tree(tmp_path / "place", {"a": b"a"})
    git(tmp_path, "init", "-q", str(place))
    git(place, "add", "-A")
    git(place, "commit", "-qm", "first")
    example = make_thread(opened)
    example.step("a", "done", state=desk_at(opened, place).record())
    ws = tmp_path / "ws"
    cli("workspace", "open", f"{example.id}@1", ws)
    (ws / "b").write_text("b")
    (ws / ".env").write_bytes(b"PASSWORD=" + TEXT)
    for arguments in (["add", "-A"], ["commit", "-qm", "second"], ["gc", "-q", "--prune=now"]):
        git(ws, *arguments)
        cli("workspace", "commit", ws)
    restore(opened, registry.find(opened, ws).recorded, tmp_path / "back")
    cli("workspace", "close", ws)
    assert git(tmp_path / "back", "log", "--format=%s").split() == ["second", "first"]
    assert git(tmp_path / "back", "show", "HEAD:b") == "b"
    assert readings.leaks(opened, TEXT) == []


def test_a_restored_step_stays_private(cli: Cli, opened: Store, tmp_path: Path) -> None:
    """What its agent has had git track makes nothing work, in a run and in checkpoints."""
    place = write_tree(tmp_path / "place", {"a": b"a", ".env": b"PASSWORD=" + TEXT + b"\n"})
    git(tmp_path, "init", "-q", str(place))
    git(place, "add", "a")
    git(place, "commit", "-qm", "first")
    agent = "command:sh -c 'git add -A; git -c user.name=a -c user.email=b commit -qm all'"
    cli("run", agent, "x", place, "--no-apply")
    again = tmp_path / "again"
    cli("checkpoint", "restore", "@last", again)
    cli("run", "command:true", "x", again, "--no-apply")
    cli("checkpoint", "create", "again", again)
    cli("checkpoint", "create", "again", again)
    cli("run", "command:true", "y", again, "--no-apply")
    cli("daemon", "stop")
    assert readings.leaks(opened, TEXT) == []
    assert git(again, "show", "HEAD:.env").encode() == b"PASSWORD=" + TEXT + b"\n"


def test_what_is_left_of_a_hidden_pack_is_hidden(cli: Cli, opened: Store, tmp_path: Path) -> None:
    other = b"another-Secret-8842"
    place = write_tree(tmp_path / "place", {"a": b"a"})
    git(tmp_path, "init", "-q", str(place))
    git(place, "add", "-A")
    git(place, "commit", "-qm", "first")
    workspace = desk_at(opened, tmp_path / "workspace")
    workspace.reset(desk_at(opened, place).record())
    (workspace.path / ".env").write_bytes(b"PASSWORD=" + TEXT + b"\n")
    (workspace.path / "prod.env").write_bytes(b"PASSWORD=" + other + b"\n")
    for arguments in FORMS["packed"]:
        git(workspace.path, *arguments)
    state = workspace.record()
    example = make_thread(opened)
    example.step("a", "done", state=state)
    cli("purge", "--text", "--force", "--with-git", stdin=TEXT)
    assert readings.leaks(opened, TEXT, whole=True) == []
    assert readings.leaks(opened, other) == []
    assert readings.leaks(opened, other, whole=True)
