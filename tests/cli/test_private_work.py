"""Files that are private are an agent's work like any other here; a push names them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from casfs.store.store import Store
from casfs.system import daemon_socket
from engine.workflow import registry as workflows
from tests.support import readings
from tests.support.engine import Cli, daemon, loop, says
from tests.support.helpers import write_tree

LOGIN = "def test():\n    login(password='Sup3r-s4fe-9q7w!x')\n"
KEY = "API_KEY=sk-live-51H8xq9ZbR4mK7tXw2LpV8sDn5HcJ6f\n"
# Backwards, as an agent with a secret in its command is refused.
SCRIPT = f"""
mkdir -p tests; rev >tests/test_login.py <<'END'
{"".join(line[::-1] + chr(10) for line in LOGIN.splitlines())}END
echo 'MORE=1' >>local.cfg; echo 'EXTRA=2' >>.env; echo more >>src.py
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = write_tree(tmp_path / "project", {"src.py": b"print()\n"})
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        user = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", place, *user, *command], check=True)
    (place / "local.cfg").write_text(KEY)
    (place / ".env").write_text("NAME=value\n")
    return place


@pytest.fixture
def thread(cli: Cli, project: Path) -> str:
    with Store.open(cli.root) as store:
        workflows.add(store, loop(1))
    agent = "a=command:" + json.dumps(says({}, SCRIPT))
    given = ("--input", "go", "--workspace", project, "--agent", agent, "--json")
    with daemon(cli.root):
        id: str = cli("thread", "start", loop(1)["name"], *given).json["id"]
        assert daemon_socket.request(cli.root, "wait", id=id)["status"] == "ended"
    return id


def test_it_is_shown_applied_and_undone(cli: Cli, project: Path, thread: str) -> None:
    lines = cli("thread", "diff", thread).text.splitlines()
    assert lines == [
        "M .env  (private)",
        "M local.cfg  (private)",
        "M src.py",
        "A tests/test_login.py  (private)",
    ]
    marked = {
        one["path"] for one in cli("thread", "diff", thread, "--json").json if one.get("private")
    }
    assert marked == {".env", "local.cfg", "tests/test_login.py"}
    assert "+MORE=1" in cli("thread", "diff", thread, "--patch").text
    applied = cli("thread", "apply", thread, project)
    assert (project / "tests/test_login.py").read_text() == LOGIN
    assert (project / "local.cfg").read_text() == KEY + "MORE=1\n"
    assert (project / ".env").read_text() == "NAME=value\nEXTRA=2\n"
    assert "takes it back" in applied.text
    cli("undo", project)
    assert not (project / "tests/test_login.py").exists()
    assert (project / "local.cfg").read_text() == KEY
    assert (project / "src.py").read_text() == "print()\n"


def test_it_merges_with_what_changed_here(cli: Cli, project: Path, thread: str) -> None:
    (project / "local.cfg").write_text(f"# mine\n{KEY}")
    (project / ".env").unlink()
    answer = cli("thread", "apply", thread, project, code=1)
    assert (project / "local.cfg").read_text() == f"# mine\n{KEY}MORE=1\n"
    assert "conflict: .env: deleted here, changed in thread " in answer.text


def test_it_is_blamed(cli: Cli, project: Path, thread: str) -> None:
    cli("checkpoint", "create", "app", project)
    cli("thread", "apply", thread, project)
    cli("checkpoint", "create", "app", project)
    rows = cli("blame", "app:local.cfg", "--json").json
    assert [row["version"]["revision"].partition("@")[0] for row in rows] == ["app", thread]
    assert cli("log", "app:tests/test_login.py", "--json").json


def test_it_stays_here_and_a_push_says_so(
    cli: Cli, project: Path, thread: str, tmp_path: Path
) -> None:
    cli("thread", "apply", thread, project)
    created = cli("checkpoint", "create", "app", project)
    assert "local.cfg:1, tests/test_login.py:2, .env" in created.err
    cli("remote", "add", "far", (tmp_path / "far").as_uri())
    for more in ((), ("--dry-run",)):
        pushed = cli("push", "far", "app", *more, "--json").json
        assert pushed["private"] == [
            {"path": ".env", "line": None},
            {"path": "local.cfg", "line": 1},
            {"path": "tests/test_login.py", "line": 2},
        ]
    said = cli("push", "far", "app").text
    assert "private, stays here: .env, local.cfg:1, tests/test_login.py:2 (to share one:" in said
    left = b"".join(path.read_bytes() for path in (tmp_path / "far").rglob("*") if path.is_file())
    assert b"Sup3r-s4fe" not in left


def test_what_a_person_allows_is_work(cli: Cli, project: Path, thread: str) -> None:
    cli("thread", "apply", thread, project)
    cli("config", "set", "snapshot.allow", '["tests/test_login.py:2"]')
    cli("checkpoint", "create", "app", project)
    assert cli("cat", "app:tests/test_login.py").text == LOGIN
    assert "local.cfg" in cli.refused("cat", "app:local.cfg", code=3)


@pytest.mark.parametrize("entry", ["tests/a.py", "a.py:0", "/a.py:1", ":1", "a.py:x", ""])
def test_an_entry_of_the_allow_list_that_is_none(cli: Cli, project: Path, entry: str) -> None:
    cli("config", "set", "snapshot.allow", json.dumps([entry]))
    said = cli.refused("checkpoint", "create", "app", project, code=4)
    assert f"snapshot.allow: {entry!r} is neither PATH:LINE" in said
    assert cli("checkpoint", "list").text == ""


def test_a_diff_of_git_alone_is_an_empty_list(cli: Cli, project: Path) -> None:
    with Store.open(cli.root) as store:
        workflows.add(store, loop(1))
    script = "git -c user.name=a -c user.email=a@example.org commit -q --allow-empty -m more"
    agent = "a=command:" + json.dumps(says({}, script))
    given = ("--input", "go", "--workspace", project, "--agent", agent, "--json")
    with daemon(cli.root):
        id = cli("thread", "start", loop(1)["name"], *given).json["id"]
        assert daemon_socket.request(cli.root, "wait", id=id)["status"] == "ended"
    answer = cli("thread", "diff", id, "--json")
    assert answer.json == []
    assert answer.err == ""


def test_it_is_compared(cli: Cli, project: Path) -> None:
    cli("checkpoint", "create", "app", project)
    assert cli("status", project).text.endswith("\nno changes\n")
    (project / ".env").write_text("NAME=other\n")
    (project / "local.cfg").unlink()
    changed = "D local.cfg  (private)\nM .env  (private)\n"
    assert set(changed.splitlines()) < set(cli("status", project).text.splitlines())
    assert sorted(cli("diff", "app", project).text.splitlines()) == sorted(changed.splitlines())
    rows = cli("status", project, "--json").json["changes"]
    assert {(row["path"], row["private"]) for row in rows} == {(".env", True), ("local.cfg", True)}
    assert "+NAME=other" in cli("diff", "app", project, "-p").text
    cli("checkpoint", "create", "app", project)
    assert sorted(cli("diff", "app~1", "app").text.splitlines()) == sorted(changed.splitlines())
    with Store.open(cli.root) as store:
        assert readings.leaks(store, b"NAME=other") == []
