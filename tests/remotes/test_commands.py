"""The command line of remotes, and a thread that moves to another store's daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casfs import config
from casfs.checkpoints import checkpoint
from casfs.store.store import Store
from casfs.threads import threads
from engine.workflow import registry as workflows
from tests.scanner import samples
from tests.support.engine import Cli, daemon, says, spawn, start_thread, until, workflow
from tests.support.engine import rule as edge
from tests.support.helpers import read_tree, write_tree
from tests.support.new_store import init_store
from tests.support.remotes import remote_bytes
from tests.support.s3_servers import S3Server
from tests.support.thread_example import make_thread


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "bucket").as_uri()


@pytest.fixture
def filled(cli: Cli, tmp_path: Path, url: str) -> Cli:
    """A store with a checkpoint `app` and a remote `backup`."""
    cli("init")
    write_tree(tmp_path / "src", {"a": b"1" * 3000, "b": {"c": b"2"}})
    cli("checkpoint", "create", "app", tmp_path / "src")
    cli("remote", "add", "backup", url)
    return cli


def test_add_list_ls_rm(filled: Cli, url: str) -> None:
    row = {"name": "backup", "url": url, "endpoint": None, "region": None, "trusted": False}
    assert filled("remote", "list", "--json").json == [row]
    assert filled("remote", "list").text == f"backup\t{url}\t\t\n"
    assert filled("remote", "ls", "backup", "--json").json == []
    pushed = filled("push", "backup", "app", "--json").json
    (line,) = filled("remote", "ls", "backup", "--json").json
    assert (line["name"], line["size"]) == (pushed["refs"][0], 3001)
    assert line["at"].startswith("20")
    assert filled("remote", "ls", "backup").text.split("\t")[0] == pushed["refs"][0]
    assert filled("remote", "rm", "backup", "--json").json == {"name": "backup"}
    assert filled("remote", "list").text == ""
    assert not (filled.root / "remotes/backup").exists()
    assert config.remotes(filled.root) == {}
    assert filled("remote", "add", "again", url).text == f"again {url}\n"  # it is one already
    assert len(filled("remote", "ls", "again", "--json").json) == 1


def test_sessions_of_agents_stay_unless_they_are_named(filled: Cli) -> None:
    asked = {"content": f"Do it with {samples.github_token()}"}
    answer = {"id": "m", "content": [{"type": "text", "text": "Yes."}]}
    lines = [
        {"type": "user", "message": asked, "uuid": "1", "cwd": "/project"},
        {"type": "assistant", "message": answer},
    ]
    file = Path.home() / ".claude/projects/-project/one.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{json.dumps({'sessionId': 'one', **line})}\n" for line in lines))
    filled("sessions", "import", "claude")
    (session,) = filled("sessions", "list", "--json").json
    name = f"threads/{session['thread']}"
    pushed = filled("push", "backup", "--all")
    assert "sessions of attached agents stay here: 1" in pushed.text
    named = [row["name"] for row in filled("remote", "ls", "backup", "--json").json]
    assert name not in named
    again = filled("push", "backup", "--all", "--sessions", "--dry-run", "--json")
    assert (name in again.json["refs"], again.json["sessions"]) == (True, 0)
    assert "redacted in it: 1; found in it: no other" in again.err
    with Store.open(filled.root) as store:
        subagent = make_thread(store, parent=session["thread"], status="suspended")
        subagent.step("coder", f"I see {samples.build('npm-token')}")
    assert f"threads/{subagent.id}" not in filled("push", "backup", "--all", "--json").json["refs"]
    refused = filled("push", "backup", session["thread"], code=4).err
    assert "sessions hold what was typed and read there; --yes to send them" in refused
    sent = filled("push", "backup", session["thread"], "--yes", "--json")
    assert {name, f"threads/{subagent.id}"} <= set(sent.json["refs"])
    assert f"session {session['thread']} of claude in /project: 1 prompts, 0 calls" in sent.err
    assert "redacted in it: 1; found in it: npm-token" in sent.err
    exported = filled("export", session["thread"], "-o", filled.root.parent / "x.tar", code=4)
    assert "--yes to write them" in exported.err
    assert not (filled.root.parent / "x.tar").exists()
    with Store.open(filled.root) as store:
        thread = threads.get(store, session["thread"])
        step = threads.last_step(store, thread)
        assert step is not None
        parts = [step, store.node(step).payload["detail"], threads.start(store, thread).hash]
        work = checkpoint.latest(store, "app")
        assert work is not None
    for part in parts:
        exported = filled("export", part, "-o", filled.root.parent / "x.tar", code=4)
        assert f"session {session['thread']} of claude" in exported.err
    filled("export", work.root, "-o", filled.root.parent / "x.tar")
    assert "--sessions goes with --all" in filled.refused(
        "push", "backup", "app", "--sessions", code=2
    )


def test_what_is_refused(filled: Cli, url: str, tmp_path: Path) -> None:
    filled.refused("remote", "add", "backup", url, code=4)
    filled.refused("remote", "add", "Bad/Name", url, code=4)
    filled.refused("remote", "add", "other", "ftp://host/x", code=4)
    filled.refused("remote", "add", "other", "s3://user:secret@bucket/x", code=4)
    filled.refused("remote", "ls", "none", code=3)
    filled.refused("remote", "rm", "none", code=3)
    filled.refused("push", "none", "app", code=3)
    filled.refused("push", "backup", "none", code=3)
    filled.refused("pull", "backup", "none", code=3)
    filled("push", "backup", code=2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    filled.refused("clone", url, tmp_path / "full", code=4)
    filled.refused("clone", (tmp_path / "nothing").as_uri(), tmp_path / "new", code=3)
    assert not (tmp_path / "new").exists()
    (filled.root / "config.toml").write_text("[remotes.backup]\nurl = 5\n")
    assert "[remotes.backup]" in filled.refused("push", "backup", "app", code=4)


def test_settings_beside_remotes_stay(filled: Cli, url: str) -> None:
    path = filled.root / "config.toml"
    path.write_text("# mine\n[runs]\nlimit = 3  # few\n\n" + path.read_text())
    filled("remote", "add", "second", url + "/2")
    filled("config", "set", "runs.max_workspace", "0")
    filled("remote", "rm", "backup")
    text = path.read_text()
    assert text.startswith("# mine\n[runs]\n")
    assert "limit = 3  # few\n" in text
    assert list(config.remotes(filled.root)) == ["second"]


def test_push_pull_clone(filled: Cli, url: str, tmp_path: Path) -> None:
    dry = filled("push", "backup", "app", "--dry-run")
    assert dry.text.startswith("would push app@")
    done = filled("push", "backup", "app")
    assert done.text.startswith("pushed app@")
    assert " in 2 packs\n" in done.text
    assert filled("push", "backup", "app").text == "everything is there already\n"
    assert filled("clone", url, tmp_path / "again").text.startswith("pulled app@")
    again = tmp_path / "again"
    assert spawn("--store", again, "checkpoint", "restore", "app", tmp_path / "out").returncode == 0
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "src")
    assert spawn("--store", again, "fsck").returncode == 0
    assert spawn("--store", again, "pull", "origin").stdout == "everything is here already\n"
    would = filled("push", "backup", "--delete", "app", "--dry-run").text
    assert filled("push", "backup", "--delete", "app").text == would.replace("would ", "").replace(
        "delete ", "deleted "
    )
    assert filled("remote", "ls", "backup", "--json").json == []
    filled.refused("push", "backup", "--delete", "app", code=3)


def test_over_s3(cli: Cli, s3: S3Server, tmp_path: Path) -> None:
    cli("init")
    write_tree(tmp_path / "src", {"a": b"1" * 3000})
    cli("checkpoint", "create", "app", tmp_path / "src")
    url = s3.url()
    cli("remote", "add", "backup", url, "--endpoint", s3.endpoint)
    cli("push", "backup", "app")
    cloned = cli("clone", url, tmp_path / "again", "--endpoint", s3.endpoint, "--json").json
    assert (len(cloned["refs"]), cloned["blobs"]) == (1, 1)
    assert spawn("--store", tmp_path / "again", "fsck").returncode == 0


def test_a_thread_goes_on_in_another_store(tmp_path: Path, url: str) -> None:
    """Two steps here, pushed while it runs; the daemon of a clone runs the third."""
    here, there, gate = tmp_path / "here", tmp_path / "there", tmp_path / "gate"
    flow = workflow(
        [edge("__start__", "a"), edge("a", "b"), edge("b", "c"), edge("c", "__end__")],
        a=None, b=None, c=None,
    )  # fmt: skip
    with init_store(here) as store:
        workflows.add(store, flow)
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    agents = {"a": says({}), "b": says({}, "echo made > made"), "c": says({}, wait)}
    with daemon(here):
        id = start_thread(here, "sample", agents)

        def show(root: Path) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(
                spawn("--store", root, "thread", "show", id, "--json").stdout
            )
            return found

        until(lambda: (show(here)["intent"] or {}).get("role") == "c", "two steps")
        spawn("--store", here, "remote", "add", "origin", url, check=True)
        spawn("--store", here, "push", "origin", id, check=True)
        spawn("--store", there, "clone", url, there, check=True)
        assert (show(here)["status"], show(there)["status"]) == ("running", "suspended")
        with daemon(there):
            assert show(there)["status"] == "suspended"  # the daemon does not take it up by itself
            gate.touch()
            for command in ("resume", "fork"):
                unseen = spawn("--store", there, "thread", command, id)
                assert unseen.returncode == 4
                assert f"casfs thread trust {id}" in unseen.stderr
            seen = spawn("--store", there, "thread", "trust", id, check=True)
            assert "echo made > made" in seen.stdout
            spawn("--store", there, "thread", "resume", id, check=True)
            until(lambda: show(there)["status"] == "succeeded", "the end there")
        until(lambda: show(here)["status"] == "succeeded", "the end here")
    with Store.open(there) as store:
        assert store.heads.get(f"threads/{id}").record["returnCode"] == 0  # type: ignore[arg-type,union-attr]
    pushed = spawn("--store", there, "push", "origin", id)
    assert pushed.returncode == 0, pushed.stderr
    refused = spawn("--store", here, "push", "origin", id)
    assert refused.returncode == 4
    assert "has moved in origin" in refused.stderr


def test_what_was_purged_is_named_and_leaves_the_remote(
    filled: Cli, url: str, tmp_path: Path
) -> None:
    write_tree(tmp_path / "src", {".config": b"TOKEN=hunter2hunter2"})
    filled("checkpoint", "create", "secret", tmp_path / "src")
    filled("push", "backup", "--all")
    filled("purge", "secret:.config", "--force")
    again = filled("push", "backup", "--all")
    assert "1 tombstones went along; `casfs remote gc backup` deletes the bytes" in again.text
    cleaned = filled("remote", "gc", "backup")
    assert "1 packs with purged content deleted at once" in cleaned.text
    assert b"hunter2hunter2" not in remote_bytes(tmp_path / "bucket")
    assert "purged/" not in filled("remote", "ls", "backup").text
    archive = filled("export", "secret", "-o", tmp_path / "secret.tar")
    assert archive.err.count(":.config: purged; left out") == 1
    write_tree(tmp_path / "src", {"new": b"file"})
    filled("remote", "add", "other", (tmp_path / "other").as_uri())
    assert ":.config: purged; left out" in filled("push", "other", "secret").err
    there = tmp_path / "clone"
    cloned = filled("clone", url, there)
    assert "purged in origin: 1 contents; see `casfs purge --list`" in cloned.err
    assert filled("--store", there, "fsck").code == 0
