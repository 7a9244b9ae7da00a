"""What is here only of a thread is shown by nothing, but where a person asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

import casfs
from casfs.errors import NotFound
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Directory, Link
from casfs.mcp.writing import Writing
from casfs.store.store import Store
from casfs.threads.threads import ENDED
from tests.engine.runtime.test_local_resume import CHANGE, whole
from tests.engine.runtime.test_local_resume import project as project  # a fixture
from tests.support.engine import Cli, begin, carry_on, loop, says
from tests.support.fuse import at
from tests.support.mcp import connected

HIDDEN = (".env", "node_modules", "KEY=")
WORK = {"package.json", "a.txt"}


@pytest.fixture
def thread(cli: Cli, project: Path) -> str:
    """A thread of two steps that change private, derived and other files."""
    import trio

    with Store.open(cli.root) as store:
        agent = says({}, f"{CHANGE}; echo b >>a.txt")
        made = begin(store, loop(2), {"a": agent}, whole(store, project))
        assert trio.run(carry_on, store, made).status == ENDED
    return made.id


def test_commands_show_the_work(cli: Cli, thread: str, tmp_path: Path) -> None:
    for command in (
        ["ls", "-l", f"{thread}@2"],
        ["thread", "show", thread, "--json"],
        ["thread", "log", thread],
        ["log", f"{thread}:", "--patch"],
        ["search", "package", "--json"],
    ):
        text = cli(*command).text
        assert not [name for name in HIDDEN if name in text], command
    compared = cli("diff", f"{thread}@1", f"{thread}@2").text.splitlines()
    assert [line for line in compared if "(private)" in line] == ["M .env  (private)"]
    assert not [line for line in compared if "node_modules" in line]
    for path in (".env", "node_modules/m"):
        cli("cat", f"{thread}@2:{path}", code=3)
    cli("checkpoint", "restore", f"{thread}@1", tmp_path / "again")
    assert (tmp_path / "again/.env").read_bytes() == b"KEY=1\n2\n"
    assert (tmp_path / "again/node_modules/m").read_bytes() == b"module\n2\n"
    assert (tmp_path / "again/.env").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("with_local", [False, True])
def test_a_mount_shows_it_where_a_person_asks(cli: Cli, thread: str, with_local: bool) -> None:
    more = {".env", "node_modules"} if with_local else set()
    with Store.open(cli.root) as store:
        top = root(StoreReader(store, with_local=with_local), Stats())
        steps = at(store, f"threads/{thread}/steps", top)
        assert isinstance(steps, Directory)
        inside = [step for _, step in steps.entries() if isinstance(step, Directory)]
        shown = [step.lookup(b"workspace") for step in inside]
        assert len(shown) == 2
        for found in shown:
            assert isinstance(found, Link)
            name = found.target.decode().rpartition("/")[2]
            shown_tree = at(store, f"trees/{name}", top)
            assert isinstance(shown_tree, Directory)
            assert {name.decode() for name, _ in shown_tree.entries()} == WORK | more


async def test_the_python_api_and_mcp_show_the_work_and_restore_all(
    cli: Cli, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "place").mkdir()
    with casfs.open(cli.root) as store:
        agent = says({}, f"{CHANGE}; echo b >>a.txt")
        made = begin(store, loop(1), {"a": agent}, whole(store, project))
        await carry_on(store, made)
        step = f"{made.id}@1"
        assert {entry.path for entry in store.trees.ls(step)} == WORK
        with pytest.raises(NotFound):
            store.trees.read(step, ".env")
        store.trees.restore(step, tmp_path / "again")
        async with connected(Writing(store, directories=[tmp_path / "place"])) as agents:
            shown = [
                await agents.call("list_tree", tree=step),
                await agents.call("read_step", thread=made.id, step=1),
            ]
            assert not [name for name in HIDDEN if name in str(shown)]
            await agents.call("restore", tree=step, directory="again")
    for place in (tmp_path / "again", tmp_path / "place/again"):
        assert (place / ".env").read_bytes() == b"KEY=1\n2\n"
        assert (place / "node_modules/m").read_bytes() == b"module\n2\n"
