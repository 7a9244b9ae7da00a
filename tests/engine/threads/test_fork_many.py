"""Many forks of one thread: one publication, agents in turn, run like any thread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casfs import canonical
from casfs.backend.protocols import Publication
from casfs.errors import Invalid
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import RUNNING
from engine.threads import forking
from engine.threads.agent_binding import Binding
from engine.workflow import registry as workflows
from tests.support.engine import ONE, Cli, begin, daemon, kill, loop, says, shell, until
from tests.support.helpers import blobs, put_tree

MANY = 100
MAX_BYTES = 1_000_000  # of the store, for all of them


def played(store: Store, id: str) -> list[str]:
    hash = threads.agents(store, threads.get(store, threads.ThreadId(id)))["a"]
    found: list[str] = store.node(hash, "agent").payload["config"]["argv"]
    return found


def size(store: Store) -> int:
    return sum(file.stat().st_size for file in store.root.glob("store.db*"))


def test_a_hundred_are_one_publication(disk_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old = begin(disk_store, ONE, {"a": says({})}, put_tree(disk_store, {"log": b"start\n"}))
    published: list[Publication] = []
    publish = disk_store.backend.publish

    def counted(*given: object) -> set[str]:
        published.append(Publication(*given))  # type: ignore[arg-type]
        return publish(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(disk_store.backend, "publish", counted)
    before, bytes_before = blobs(disk_store), size(disk_store)
    made = forking.fork(disk_store, old, count=MANY)
    assert [len(one.swaps) for one in published] == [MANY]
    assert blobs(disk_store) == before, "no node is copied"
    assert size(disk_store) - bytes_before <= MAX_BYTES
    assert [threads.get(disk_store, one.id) for one in made] == made
    assert {one.status for one in made} == {RUNNING}
    assert sum(len(canonical.encode(dict(one.record))) for one in made) < MAX_BYTES / 10
    variants = [{"a": Binding("command", shell(f"exit {n}"))} for n in range(3)]
    many = forking.fork(disk_store, old, None, variants, MANY)
    assert [len(one.swaps) for one in published] == [MANY, MANY]
    assert len(blobs(disk_store)) - len(before) == 6, "an agent and its list for each variant"
    codes = [played(disk_store, one.id)[2] for one in many]
    assert codes == [f"exit {n % 3}" for n in range(MANY)]
    assert [one.id for one in many] == sorted(one.id for one in many)


@pytest.mark.parametrize(
    ("count", "name", "said"),
    [(0, None, "1 to 1000"), (1001, None, "1 to 1000"), (2, "twice", "1 with a name")],
)
def test_what_is_refused(disk_store: Store, count: int, name: str | None, said: str) -> None:
    old = begin(disk_store, ONE, {"a": says({})})
    with pytest.raises(Invalid, match=said):
        forking.fork(disk_store, old, count=count, options=forking.ForkOptions(name=name))
    assert len(threads.list_threads(disk_store)) == 1


def test_all_go_on_when_the_daemon_is_killed(cli: Cli, tmp_path: Path) -> None:
    """Twelve, of which eight run at once."""
    gate = tmp_path / "gate"
    with Store.open(cli.root) as store:
        script = f"[ $CASFS_STEP = 1 ] || while [ ! -e {gate} ]; do sleep 0.05; done"
        id = begin(store, loop(2), {"a": says({}, f"{script}; echo $CASFS_STEP >>log")}).id
    with daemon(cli.root) as pid:
        until(lambda: cli("thread", "show", id, "--json").json["steps"], "the first step")
        ids = cli("thread", "fork", id, "--at", "1", "--count", "12").text.splitlines()
        until(lambda: len(cli("thread", "list", "--status", "running", "--json").json) >= 8)
        kill(pid)
    gate.touch()
    with daemon(cli.root):
        until(lambda: len(cli("thread", "list", "--status", "succeeded", "--json").json) == 13)
    rows = cli("thread", "compare", *ids, "--json").json
    assert [row["steps"] for row in rows] == [2] * 12


VARIANTS = """
[[variants]]
config = {timeoutS = 7}
[[variants]]
package = "command:echo other"
"""


def test_the_command_line(cli: Cli, tmp_path: Path) -> None:
    with Store.open(cli.root) as store:
        workflows.add(store, loop(2))
    file, bad = tmp_path / "variants.toml", tmp_path / "bad.toml"
    file.write_text(VARIANTS)
    bad.write_text('[[variants]]\nmodel = "x"\n')
    own = f"a=command:{json.dumps(says({}))}"
    with daemon(cli.root):
        id = cli("thread", "start", "sample", "--input", "x", "--agent", own, "--wait").word
        fork = ("thread", "fork", id, "--at", "1")
        ids = cli(*fork, "--count", "12").text.splitlines()
        assert len(set(ids)) == 12
        states = ("thread", "list", "--status", "succeeded", "--json")
        until(lambda: len(cli(*states).json) == 13, "the end of all, more than run at once")
        two = ("--agent", "a=command:true", "--agent", "a=command:false")
        said = cli(*fork, "--count", "3", *two, "--json").json
        vary = cli(*fork, "--count", "3", "--vary", f"a={file}").text.splitlines()
        with Store.open(cli.root) as store:
            assert [played(store, one) for one in said["ids"]] == [["true"], ["false"], ["true"]]
            first = threads.agents(store, threads.get(store, threads.ThreadId(vary[0])))["a"]
            config = store.node(first, "agent").payload["config"]
            assert config == {**says({}), "timeoutS": 7}, "over the agent's own config"
            assert played(store, vary[1]) == ["echo", "other"]
            assert played(store, vary[2]) == played(store, vary[0])
    before = cli.contents()
    assert "give --count 2, or more" in cli(*fork, *two, code=2).err
    assert (
        "of a role without --agent"
        in cli(*fork, "--count", "2", *two, "--vary", f"a={file}", code=2).err
    )
    assert "give ROLE=FILE" in cli(*fork, "--vary", str(file), code=2).err
    assert "is for one fork" in cli(*fork, "--count", "2", "--wait", code=2).err
    said = cli(*fork, "--count", "2", "--vary", f"a={bad}", code=4).err
    assert said.endswith(
        "bad.toml: variants, number 1: model: no such field; there are package, version, config\n"
    )
    bad.write_text("[agents.a]\n")
    assert "tables [[variants]]" in cli(*fork, "--vary", f"a={bad}", code=4).err
    assert cli.contents() == before
