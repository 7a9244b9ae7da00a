"""Names of threads: valid, given once, usable in place of an id."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from casfs.errors import CasfsError, Conflict, Invalid
from casfs.store.store import Store
from casfs.threads import lookup, threads
from casfs.threads.threads import Thread
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support.engine import ONE, Cli, daemon, says


def made(store: Store, name: str, key: str | None = None) -> Thread:
    flow, _ = workflows.add(store, ONE)
    bound = {"a": Binding("command", says({}))}
    return lifecycle.create(store, ThreadRequest(flow, "x", bound, key=key, name=name))


def test_a_name_is_given_once(disk_store: Store) -> None:
    one = made(disk_store, "mend", "key")
    assert lookup.find(disk_store, "mend").id == one.id
    with pytest.raises(Conflict, match=f"the name 'mend' is taken by thread {one.id}"):
        made(disk_store, "mend")
    assert made(disk_store, "mend", "key").id == one.id, "the same request again"
    assert len(threads.list_threads(disk_store)) == 1


def test_by_several_at_once(disk_store: Store) -> None:
    def attempt(_: int) -> bool:
        try:
            made(disk_store, "mend")
        except CasfsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1


@pytest.mark.parametrize("name", ["Mend the login, twice", "Müller's fix (2)", "x" * 64, "a"])
def test_a_name_may_be_a_title(disk_store: Store, name: str) -> None:
    thread = made(disk_store, name)
    assert lookup.find(disk_store, name).id == thread.id


@pytest.mark.parametrize(
    "name",
    [
        *("", "@last", " a", "a ", "a\nb", "a\n", "a:b", "a@2", "a/b", "\x1b[2J", "a\u202eb"),
        *("x" * 65, "ab" * 32, "01JD0000000000000000000000"),
    ],
)
def test_what_is_no_name(disk_store: Store, name: str) -> None:
    with pytest.raises(Invalid, match="invalid thread name"):
        made(disk_store, name)
    assert threads.list_threads(disk_store) == []


def test_the_command_line(cli: Cli) -> None:
    with Store.open(cli.root) as store:
        workflows.add(store, ONE)
    start = ("thread", "start", "sample", "--input", "x", "--agent", 'a=command:{"argv":["false"]}')
    with daemon(cli.root):
        id = cli(*start, "--name", "mend", "--no-workspace", "--wait", code=7).word
        cli(*start, "--name", "mend", code=4)
        other = cli("thread", "fork", "mend", "--at", "0", "--name", "again").word
        cli("thread", "fork", "mend", "--at", "0", "--name", "again", code=4)
        cli("thread", "fork", "mend", "--at", "0", "--name", "a:b", code=4)
        assert cli("thread", "show", "again", "--json").json["id"] == other
        cli("thread", "cancel", "again")
        assert cli("thread", "cancel", "mend").word == id
    assert cli("thread", "show", "mend", "--json").json["id"] == id
    assert {cli("thread", "rm", name).word for name in ("mend", "@last")} == {id, other}
