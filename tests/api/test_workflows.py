"""Workflows and threads of the public API without a daemon, commands and plugins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import casfs
from tests.support.engine import STATUS, daemon, rule, says, workflow

LOOP = workflow(
    [
        rule("__start__", "a"),
        rule("a", "b", "$steps[-1].meta.status = 'done'"),
        rule("a", "a"),
        rule("b", "__end__"),
    ],
    a=STATUS,
    b=None,
)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[casfs.Store]:
    with casfs.init(tmp_path / "store") as store:
        yield store


def test_a_workflow_is_registered_with_all_it_is_made_of_and_loaded(opened: casfs.Store) -> None:
    made = opened.workflows.register(LOOP)
    assert opened.workflows.register(LOOP) == made
    assert opened.workflows.load(made.hash).definition == made.definition == LOOP
    assert opened.workflows.list() == [made]
    types = {opened.node(hash).type for hash in opened.walk(made.hash)}
    assert {"workflow", "role", "role-schema"} <= types
    with pytest.raises(casfs.Invalid, match="moderator"):
        opened.workflows.register({**LOOP, "moderator": [rule("__start__", "a", "$count(")]})
    with pytest.raises(casfs.NotFound, match="no workflow"):
        opened.workflows.load("none")


def test_a_file_brings_its_default_agents(opened: casfs.Store, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    role = "roles: {a: {systemPrompt: Do it., agent: human}}"
    first, last = "{from: __start__, to: a, when: null}", "{from: a, to: __end__, when: null}"
    path.write_text(f"{role}\nmoderator: [{first}, {last}]\n")
    made = opened.workflows.register(path)
    assert (made.name, made.agents["a"].name) == ("mine", "human")
    with pytest.raises(casfs.Failed, match=r"cannot read .*none\.yaml"):
        opened.workflows.register(tmp_path / "none.yaml")


def test_the_moderator_is_evaluated(opened: casfs.Store) -> None:
    opened.workflows.register(LOOP)
    failed, done = ({"role": "a", "meta": {"status": word}} for word in ("failed", "done"))
    decide = opened.workflows.next
    assert decide("sample", []) == "a"
    assert decide("sample", [failed]) == "a"
    assert decide("sample", [failed, done]) == "b"
    assert decide("sample", [done, {"role": "b", "meta": {}}]) == "__end__"
    assert decide("sample", [{"role": "none", "meta": {}}]) == "__end__"
    wrong = [rule("__start__", "a"), rule("a", "__end__", "$number('x') = 1")]
    opened.workflows.register(workflow(wrong, a=None))
    with pytest.raises(casfs.Failed, match="moderator rule 1"):
        decide("sample", [{"role": "a", "meta": {}}])


def agents(**metas: object) -> dict[str, casfs.Agent]:
    return {role: casfs.Agent("command", says(meta)) for role, meta in metas.items()}


def test_a_thread_runs_to_its_end_in_this_process(opened: casfs.Store, tmp_path: Path) -> None:
    opened.workflows.register(LOOP)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/old").write_text("old")
    tree = opened.trees.build(tmp_path / "project")
    writes = casfs.Agent("command", says({"status": "done"}, "echo more >new"))
    played = {"a": writes, **agents(b={})}
    thread = opened.threads.start("sample", "Do it.", played, workspace=tree, in_process=True)
    assert thread.status == "succeeded"
    steps = opened.threads.steps(thread.id)
    assert [step.role for step in steps] == ["a", "b"]
    assert opened.trees.read(steps[-1], "new") == b"more\n"
    forked = opened.threads.fork(thread.id, at=1, in_process=True)
    assert forked.status == "succeeded"


def test_a_thread_runs_in_a_store_in_memory(tmp_path: Path) -> None:
    with casfs.Store.memory() as store:
        store.workflows.register(LOOP)
        played = agents(a={"status": "done"}, b={})
        thread = store.threads.start("sample", "Do.", played, workspace=False, in_process=True)
        assert thread.status == "succeeded"
        (tmp_path / "old").write_text("old")
        tree = store.trees.build(tmp_path)
        writes = casfs.Agent("command", says({"status": "done"}, "echo more >>old"))
        other = store.threads.start(
            "sample", "Do.", {**played, "a": writes}, workspace=tree, in_process=True
        )
        assert store.trees.read(store.threads.steps(other.id)[-1], "old") == b"oldmore\n"
        assert list((store.root / "workspaces").iterdir()) == [], "its workspace is gone"
        assert {"thread-start", "thread-step", "thread-end"} <= {
            store.node(hash).type for hash in store.walk(thread.hash) if hash in _nodes(store, hash)
        }


def _nodes(store: casfs.Store, hash: str) -> list[str]:
    return [hash for one in store.blobs.info([hash]).values() if one.type is not None]


def test_a_suspended_thread_is_answered_in_this_process(opened: casfs.Store) -> None:
    opened.workflows.register(LOOP)
    human = {"a": casfs.Agent("human", {"question": "May it?"}), **agents(b={})}
    thread = opened.threads.start("sample", "Do it.", human, in_process=True)
    assert thread.status == "suspended"
    with pytest.raises(casfs.CasfsError, match="does not fit"):
        opened.threads.resume(thread.id, '{"status": 1}', in_process=True)
    thread = opened.threads.resume(thread.id, '{"status": "done"}', in_process=True)
    assert thread.status == "succeeded"


def test_beside_a_daemon_no_thread_runs_in_this_process(opened: casfs.Store) -> None:
    opened.workflows.register(LOOP)
    played = agents(a={"status": "done"}, b={})
    with daemon(opened.root), pytest.raises(casfs.Refused, match="is running already"):
        opened.threads.start("sample", "Do it.", played, in_process=True)
    assert opened.threads.list() == []


def test_what_a_store_lacks_is_found(opened: casfs.Store) -> None:
    stored = opened.put(b"stored")
    absent = casfs.Digest("0" * 64, 1)
    assert opened.find_missing([absent, stored, absent.hash]) == [absent.hash]


def test_a_command_is_run_once(opened: casfs.Store, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    path = tmp_path / "work/in"
    path.write_text("one")
    argv = ["sh", "-c", "echo said; cat in >out"]
    asked = {"outputs": ["out"], "env": {"PATH": os.environ["PATH"]}}
    find, run = opened.actions.lookup, opened.actions.run
    assert find(argv, path.parent, **asked) is None  # type: ignore[arg-type]
    lines: list[str] = []
    made = run(argv, path.parent, warn=lines.append, **asked)  # type: ignore[arg-type]
    assert (made.exit_code, made.stdout, made.is_hit) == (0, b"said\n", False)
    assert "no earlier run" in lines[0]
    (path.parent / "out").unlink()
    again = run(argv, path.parent, **asked)  # type: ignore[arg-type]
    assert (again.is_hit, again.hash, again.stdout) == (True, made.hash, b"said\n")
    assert (path.parent / "out").read_text() == "one"
    assert find(argv, path.parent, **asked) == again  # type: ignore[arg-type]
    failed = run(["false"], path.parent, env=asked["env"])  # type: ignore[arg-type]
    assert (failed.exit_code, failed.hash, failed.outputs) == (1, None, None)


def test_a_plugin_is_synced_once_and_materialized(opened: casfs.Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("1")
    made = opened.plugins.sync("tool", "1.0", source)
    (source / "file").write_text("2")
    assert opened.plugins.sync("tool", "1.0", source) == made
    assert opened.plugins.list() == opened.plugins.list("tool") == [made]
    assert opened.plugins.materialize("tool", "1.0", tmp_path / "there") == made
    assert (tmp_path / "there/file").read_text() == "1"
    assert opened.plugins.sync("tool", "1.0", source, refresh=True).root != made.root
