"""The ports of running threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.store.store import Store
from casfs.threads.threads import new_id
from casfs.worktrees import environment
from engine.runtime.thread_ports import ThreadPorts
from engine.workflow import registry as workflows
from tests.support.engine import STATUS, Cli, daemon, rule, says, start_thread, until, workflow

DONE = rule("a", "__end__", "$last('a').meta.status = 'done'")
FLOW = workflow([rule("__start__", "a"), DONE], a=STATUS)


def status(cli: Cli, id: str) -> str:
    return str(cli("thread", "show", id, "--json").json["status"])


def test_two_at_once_have_others(cli: Cli, tmp_path: Path) -> None:
    with Store.open(cli.root) as store:
        workflows.add(store, FLOW)
    script = f"echo $CASFS_PORT_BASE >{tmp_path}/$CASFS_THREAD.new; "
    script += f"mv {tmp_path}/$CASFS_THREAD.new {tmp_path}/$CASFS_THREAD; "
    script += f"while [ ! -e {tmp_path}/gate ]; do sleep 0.02; done"
    with daemon(cli.root):
        ids = [
            start_thread(cli.root, "sample", {"a": says({"status": "done"}, script)}, name=name)
            for name in ("one", "two")
        ]
        until(lambda: all((tmp_path / id).exists() for id in ids) or None, "both")
        bases = [int((tmp_path / id).read_text()) for id in ids]
        (tmp_path / "gate").touch()
        for id in ids:
            until(lambda id=id: status(cli, id) == "succeeded" or None, id)
    assert abs(bases[0] - bases[1]) >= environment.PORTS_EACH


def test_blocks_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "THREAD_BLOCKS", range(450, 452))
    ports = ThreadPorts()
    first, second, third = new_id(), new_id(), new_id()
    bases = {int(ports.take(id)[environment.PORT_VARIABLE]) for id in (first, second)}
    assert {(base - environment.FIRST_PORT) // environment.PORTS_EACH for base in bases} == {
        450,
        451,
    }
    assert ports.take(first)[environment.PORT_VARIABLE] in map(str, bases)
    assert ports.take(third) == {}
    ports.give_back(first)
    assert ports.take(third)
