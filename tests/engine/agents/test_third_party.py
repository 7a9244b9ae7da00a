"""Agents of somebody else's: real distributions, installed by pip into a place of their own."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import CasfsError, Invalid, NotFound, Refused
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED
from engine.workflow import registry as workflows
from tests.support.engine import ONE, daemon, says, spawn

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds both packages; pip builds them from copies."""
    base = tmp_path_factory.mktemp("packages")
    sources = []
    for name in ("third_party", "broken_party"):
        shutil.copytree(FIXTURES / name, base / name)
        sources.append(str(base / name))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(base / "site")]
    done = subprocess.run([*pip, *options, *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return base / "site"


@pytest.fixture
def on_path(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process of a test finds the packages, as in an environment that has them."""
    monkeypatch.setenv("PYTHONPATH", str(installed))


def listed() -> dict[str, dict[str, Any]]:
    done = spawn("agent", "list", "--json")
    assert done.returncode == 0, done.stderr
    return {one["name"]: one for one in json.loads(done.stdout)}


@pytest.mark.usefixtures("on_path")
def test_they_are_listed_and_the_broken_one_says_why() -> None:
    found = listed()
    assert found["parrot"]["version"] == "2.1.0"
    assert found["parrot"]["capabilities"] == ["answer"]
    error = found["broken"]["error"]
    said = "agent broken: does not load: RuntimeError: a part of this package is missing ("
    assert error.startswith(said)
    assert re.search(r"/casfs_broken\.py:\d+\)$", error)
    built_in = {"command", "cursor", "hermes", "llm", "react"}
    assert built_in <= found.keys()
    assert not [name for name in built_in if "error" in found[name]]
    text = spawn("agent", "list").stdout
    assert "parrot\t2.1.0\tok\n" in text
    assert "agent broken: does not load: RuntimeError" in text


@pytest.mark.usefixtures("on_path")
def test_one_is_described() -> None:
    done = spawn("agent", "describe", "parrot")
    described = json.loads(done.stdout)
    assert (described["name"], described["version"]) == ("parrot", "2.1.0")
    assert described["configSchema"]["required"] == ["times"]
    broken = spawn("agent", "describe", "broken")
    assert broken.returncode == 1
    assert "a part of this package is missing" in broken.stderr


@pytest.mark.usefixtures("on_path")
def test_one_plays_a_role(disk_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    root = disk_store.root
    monkeypatch.setenv("PARROT_KEY", "hunter2-hunter2")
    workflows.add(disk_store, ONE)

    def start(name: str, config: dict[str, Any], version: str = "") -> Any:
        agents = {"a": {"name": name, "config": config, "version": version}}
        asked = {"workflow": "sample", "input": "Hello hunter2-hunter2!", "agents": agents}
        return daemon_socket.request(root, "start", **asked)

    config = {"times": 2, "meta": {"x": 1}, "key": "PARROT_KEY"}
    with daemon(root):
        refusals: list[tuple[Any, type[CasfsError], str]] = [
            (("parrot", {"times": 0}), Invalid, r"--agent a: config\.times: "),
            (("parrot", {}), Invalid, "--agent a: config.times is required"),
            (("parrot", config, ">=3"), Refused, "version 2.1.0 is installed, not >=3"),
            (("parrot", config, "two"), Invalid, "is not a PEP 440 version specifier"),
            (("broken", {}), CasfsError, "agent broken: does not load"),
            (("nobody", {}), NotFound, "no agent or profile 'nobody'"),
        ]
        before = threads.list_threads(disk_store)
        for given, error, said in refusals:
            with pytest.raises(error, match=said):
                start(*given)
        assert threads.list_threads(disk_store) == before
        made = start("parrot", config, "~=2.0")
        other = start("command", says({}))
        for id in (made["id"], other["id"]):
            assert daemon_socket.request(root, "wait", id=id)["status"] == ENDED
    (step,) = (node.payload for node in threads.backwards(disk_store, thread_of(disk_store, made)))
    assert step["meta"] == {"x": 1}
    agent = disk_store.node(step["agent"], "agent").payload
    assert agent == {"package": "parrot", "version": "==2.1.0", "config": config}
    detail = disk_store.node(step["detail"], "parrot-detail").payload
    assert disk_store.node(detail["heard"]).payload["text"] == "Hello $PARROT_KEY!"
    assert thread_of(disk_store, made).record["spent"]["tokens"] == 2


def thread_of(store: Store, made: dict[str, str]) -> threads.Thread:
    return threads.get(store, made["id"])
