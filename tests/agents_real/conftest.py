"""Real agents in threads of a real daemon, against a scripted model server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casfs.agents import notation
from casfs.digest import TreeHash
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import Thread
from casfs.trees import tree
from engine import content
from engine.workflow import registry as workflows
from tests.support import agent_model, programs, real_agents
from tests.support.agent_model import Model
from tests.support.attached_program import Attached, attached_in
from tests.support.engine import STATUS, Cli, rule, until, workflow
from tests.support.helpers import put_tree
from tests.support.outside_programs import PROGRAMS

TIMEOUT_S = 400
REPORT = '```json\n{"status": "done"}\n```'
BEFORE = {"README.md": b"A project.\n", "LICENSE": b"None.\n"}
FULLY = ("opencode", "qwen", "hermes")  # are tested in every respect, the others in a thread


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An agent that starts beside three others on two busy cores takes a minute for that alone."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture
def model() -> Iterator[Model]:
    with agent_model.served() as served:
        yield served
        assert served.faults == []


@dataclass(frozen=True)
class Play:
    """One agent in the threads of one store."""

    store: Store
    name: str
    model: Model
    folder: Path

    def start(self, scripts: Mapping[str, str], **config: Any) -> str:
        """Starts a thread of a role for each script, one after the other; returns its id."""
        spec = notation.resolved(notation.parse(f"acp:{self.name}"), {})
        given = {**spec["config"], **real_agents.AGENTS[self.name].config, **config}
        return self.start_agent({**spec, "config": given}, scripts)

    def start_agent(self, spec: Mapping[str, Any], scripts: Mapping[str, str]) -> str:
        flow = _in_turn(scripts)
        workflows.add(self.store, flow)
        agents = dict.fromkeys(scripts, spec)
        root = put_tree(self.store, BEFORE)
        asked = {"workflow": flow["name"], "input": "Do it.", "agents": agents, "workspace": root}
        return str(daemon_socket.request(self.root, "start", **asked)["id"])

    @property
    def root(self) -> Path:
        return self.store.root

    def wait(self, id: str) -> Thread:
        """Returns the thread as soon as it does not run any more."""
        daemon_socket.request(self.root, "wait", id=id)
        return threads.get(self.store, id)

    def held(self, name: str = "go") -> str:
        """The file that a script holds for."""
        return str(self.folder / name)

    def until_held(self, name: str = "go") -> None:
        until(Path(f"{self.held(name)}.asked").exists, f"a request to the model ({self.name})")
        Path(f"{self.held(name)}.asked").unlink()

    def release(self, name: str = "go") -> None:
        Path(self.held(name)).touch()

    def text(self, hash: str) -> str:
        return content.text(self.store, hash)

    def files(self, root: TreeHash) -> dict[str, bytes]:
        """The small files of a tree."""
        found = tree.walk(self.store, root)
        files = {path: one.digest.hash for path, one in found if isinstance(one, File)}
        return {path.decode(): self.store.get(hash) for path, hash in files.items()}


def _in_turn(scripts: Mapping[str, str]) -> dict[str, Any]:
    """A workflow that asks its roles one after the other; their prompts hold the scripts."""
    names = ["__start__", *scripts, "__end__"]
    rules = list(map(rule, names, names[1:]))
    flow = workflow(rules, "-".join(scripts), **dict.fromkeys(scripts, STATUS))
    for name, lines in scripts.items():
        flow["roles"][name]["systemPrompt"] += f"\n\n{lines}"
    return flow


@pytest.fixture(params=real_agents.AGENTS)
def play(
    request: pytest.FixtureRequest,
    disk_store: Store,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Play:
    """An agent, installed and set up; its environment is that of the daemon."""
    ready(request.param, model.url, monkeypatch)
    return Play(disk_store, request.param, model, tmp_path)


def ready(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs an agent and sets it up for a model server, in this process' environment."""
    try:
        folder = real_agents.install(name)
    except real_agents.Missing as error:
        pytest.skip(f"{programs.MISSING}{name}: {error}")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    for key, value in real_agents.set_up(name, Path.home(), url).items():
        monkeypatch.setenv(key, value)


@pytest.fixture(params=PROGRAMS)
def attached(
    request: pytest.FixtureRequest,
    cli: Cli,
    disk_store: Store,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Attached]:
    ready(request.param, model.url, monkeypatch)
    project = tmp_path / "project"
    with attached_in(project, request.param, cli, disk_store, model, monkeypatch) as made:
        (project / "README").write_text("A project.\n")
        yield made
