"""The version of an agent: asked for by the thread, recorded by the step, checked in between."""

from __future__ import annotations

import shutil
from importlib import invalidate_caches
from pathlib import Path

import pytest

from casfs.errors import Refused
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ENDED, SUSPENDED
from engine.agents import loader
from engine.threads import lifecycle, suspension
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.engine.agents.test_loader import install
from tests.support.engine import carry_on, loop, resumed, steps

CODE = """
from casfs.agents import AgentResult
package_descriptor = {}
def create_agent(config):
    async def agent(context):
        detail = context.store.put(b"x")
        return AgentResult("```json\\n{}\\n```", detail)
    return agent
"""


UPGRADES = """
import json
import os
from casfs.agents import AgentResult
package_descriptor = {}
RAN = 1
def create_agent(config):
    async def agent(context):
        new = {1: "2.0.0", 2: "3.0.0"}[RAN]
        with open(config["folder"] + "/magpie_code.py") as file:
            code = file.read()
        with open(config["folder"] + "/magpie_code.py", "w") as file:
            file.write(code.replace("RAN = 1", "RAN = 2  # changed"))
        (old,) = [one for one in os.listdir(config["folder"]) if one.endswith(".dist-info")]
        info = f"{config['folder']}/magpie_agent-{new}.dist-info"
        os.rename(f"{config['folder']}/{old}", info)
        with open(f"{info}/METADATA", "w") as file:
            file.write(f"Metadata-Version: 2.1\\nName: magpie-agent\\nVersion: {new}\\n")
        output = "```json\\n" + json.dumps({"ran": RAN}) + "\\n```"
        return AgentResult(output, context.store.put(b"x"))
    return agent
"""


@pytest.mark.parametrize(("wanted", "goes_on"), [("", True), (">=1.4", True), (">=1.4,<2", False)])
async def test_a_version_that_does_not_satisfy_the_thread_suspends_it(
    wanted: str,
    goes_on: bool,
    disk_store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "magpie", "magpie_code", "1.4.2", CODE)
    flow, _ = workflows.add(disk_store, loop(2))
    bound = {"a": Binding("magpie", {}, wanted)}
    rests = await carry_on(
        disk_store, lifecycle.create(disk_store, ThreadRequest(flow, "x", bound, max_steps=1))
    )
    assert (rests.status, rests.record["cause"]) == (SUSPENDED, "rounds")
    shutil.rmtree(tmp_path / "magpie_agent-1.4.2.dist-info")
    install(tmp_path, "magpie", "magpie_code", "2.0.0")
    invalidate_caches()
    now = await resumed(disk_store, rests)
    ran = [
        disk_store.node(step["agent"], "agent").payload["version"]
        for step in steps(disk_store, now)
    ]
    if goes_on:
        assert (now.status, ran) == (ENDED, ["==1.4.2", "==2.0.0"])
    else:
        assert (now.status, ran) == (SUSPENDED, ["==1.4.2"])
        said = "a: agent magpie: version 2.0.0 is installed, not >=1.4,<2; `thread resume --agent`"
        assert now.record["reason"].startswith(said)
    (agent,) = threads.agents(disk_store, now).values()
    assert disk_store.node(agent, "agent").payload["version"] == wanted
    if now.status == SUSPENDED:
        new = {"a": Binding("magpie", {}, ">=2")}
        ended = await carry_on(disk_store, suspension.resume(disk_store, now, agents=new))
        last = disk_store.node(steps(disk_store, ended)[-1]["agent"], "agent").payload
        assert (ended.status, last["version"]) == (ENDED, "==2.0.0")


async def test_a_step_has_the_version_that_was_installed_when_it_ran(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade in the middle of a run: the next step runs the new code, and says so."""
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "magpie", "magpie_code", "1.4.2", UPGRADES)
    flow, _ = workflows.add(disk_store, loop(3))
    bound = {"a": Binding("magpie", {"folder": str(tmp_path)}, "<3")}
    made = lifecycle.create(disk_store, ThreadRequest(flow, "x", bound))
    now = await carry_on(disk_store, made)
    ran = [
        (step["meta"]["ran"], disk_store.node(step["agent"], "agent").payload["version"])
        for step in steps(disk_store, now)
    ]
    assert ran == [(1, "==1.4.2"), (2, "==2.0.0")]
    assert (now.status, now.record["cause"]) == (SUSPENDED, "failure")
    assert "version 3.0.0 is installed, not <3" in now.record["reason"]
    with pytest.raises(Refused, match=r"version 3\.0\.0 is installed, not <3"):
        loader.resolve("magpie", "<3", {})
