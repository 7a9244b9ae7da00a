"""Every example of docs/agents.md and of its reference runs; those with real agents in
`tests/agents_real`."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from casfs.agents import AgentResult, notation
from casfs.agents.notation import AgentSpec
from casfs.cli.thread.arguments import agent_binding
from casfs.errors import Invalid
from casfs.store.store import Store
from casfs.threads.threads import ENDED
from engine.agents import loader
from engine.output.parser import extract, role_schema
from engine.threads import lifecycle, role_agents
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import definition
from engine.workflow import registry as workflows
from tests.support import console_docs, doc_examples
from tests.support.engine import ONE, STATUS, carry_on, role, rule, steps, workflow
from tests.support.model_server import served, text, tool_calls

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "agents.md"
FIRST, REFERENCE = PAGE.read_text("utf-8"), (DOCS / "agents-reference.md").read_text("utf-8")
TEXT = f"{FIRST}\n{REFERENCE}"
COMMANDS = [(line, shown) for line, shown in console_docs.commands(FIRST) if "opencode" not in line]


def blocks(mark: str) -> list[str]:
    return re.findall(rf"^```{mark}\n(.*?)^```$", TEXT, re.M | re.S)


FILES = console_docs.files(FIRST)
OPTIONS = [
    line for block in blocks("sh") for line in block.splitlines() if line.startswith("--agent")
]


def test_every_example_has_a_mark_that_a_test_knows() -> None:
    marks = re.findall(r"^```(.*)$", TEXT, re.M)[::2]
    assert sorted(set(marks)) == ["console", "json", "python", "sh", "toml"]
    assert (len(blocks("json")), len(blocks("python")), len(blocks("toml"))) == (1, 1, 2)
    assert all(name.split("/")[0] in ("project", "greeter") for name, _ in FILES)


def test_from_what_one_has_to_a_running_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The beginning of the page, typed line by line; pip installs beside this environment."""
    for name, content in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "site").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("CASFS_STORE", str(tmp_path / "store"))
    for name, value in (("TARGET", "site"), ("NO_INDEX", "1"), ("NO_BUILD_ISOLATION", "0")):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    write = tool_calls(("write_file", '{"path": "hello.txt", "text": "Hello"}'))
    with served(write, text("Done.")) as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        try:
            for line, shown in COMMANDS:
                if not line.startswith("export "):
                    console_docs.run(line, shown, tmp_path)
        finally:
            console_docs.run("casfs daemon stop", "…\n", tmp_path)
    assert (tmp_path / "project" / "hello.txt").read_text() == "Hello"


def profiles() -> dict[str, AgentSpec]:
    tables = tomllib.loads(blocks("toml")[1])["agents"]
    return role_agents.read_profiles({name: (table, "page") for name, table in tables.items()})


def bound(option: str) -> AgentSpec:
    flag, value = shlex.split(option)
    assert flag == "--agent"
    return notation.resolved(agent_binding(value)[1], profiles())


def test_the_profiles_are_accepted() -> None:
    for name in profiles():
        agent = bound(f"--agent {name}")
        loader.resolve(agent["name"], agent["version"], agent["config"])
    assert bound("--agent careful:huge")["config"]["model"] == "huge"


def test_every_built_in_agent_has_an_example() -> None:
    own = {
        point.name
        for point in entry_points(group=loader.ENTRY_POINT_GROUP)
        if not_third_party(point)
    }
    shown = {bound(option)["name"] for option in OPTIONS}
    assert own - shown <= {"react"}  # its config is `llm`'s, and the table


def not_third_party(point: Any) -> bool:
    return point.value.startswith(loader.BUILTIN_MODULES)


@pytest.mark.parametrize("option", OPTIONS)
def test_an_agent_option_is_accepted(option: str) -> None:
    agent = bound(option)
    package = loader.resolve(agent["name"], agent["version"], agent["config"])
    with pytest.raises(Invalid):
        package.check_config({**agent["config"], "noSuchOption": 1})


def test_the_policy_is_accepted() -> None:
    policy = json.loads(blocks("json")[0])
    given = workflow([rule("__start__", "a"), rule("a", "__end__")], a=None)
    given["roles"]["a"] = {**role("a"), "policy": policy}
    assert definition.check(given).errors == []


def test_the_output_holds_its_meta(store: Store) -> None:
    shown = re.search(r"^    All 10 tests pass\..*?^    ```$", TEXT, re.M | re.S)
    assert shown is not None
    output = re.sub(r"^    ", "", shown[0], flags=re.M)
    schema = role_schema({"name": "any", "type": "object"})
    assert extract(output, schema, store).meta == {"status": "passed"}


def test_the_entry_point_is_in_the_group() -> None:
    (group,) = tomllib.loads(blocks("toml")[0])["project"]["entry-points"]
    assert group == loader.ENTRY_POINT_GROUP


async def test_the_agent_of_your_own_plays_a_role(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = doc_examples.run(PAGE)
    imported = re.findall(r"^(?:from|import) (\S+)", blocks("python")[0], re.M)
    assert imported == ["casfs.agents"]
    descriptor = names["package_descriptor"]
    package = loader.Package(descriptor["name"], "1.0", descriptor, names["create_agent"])
    loader.check(package)
    package.check_config({"keyEnv": "KEY"})
    assert package.secret_names({"keyEnv": "KEY"}) == {"KEY"}
    monkeypatch.setattr(loader, "load", lambda name: package)
    given = {**ONE, "roles": {"a": role("a", STATUS)}}
    flow, _ = workflows.add(disk_store, given)
    request = ThreadRequest(flow, "Do it.", {"a": Binding("greeter", {"keyEnv": "KEY"}, "==1.0")})
    ended = await carry_on(disk_store, lifecycle.create(disk_store, request))
    assert ended.status == ENDED
    (step,) = steps(disk_store, ended)
    assert step["meta"] == {"status": "done"}
    assert disk_store.node(step["detail"], "content").payload["text"] == "how I did it"
    assert names["AgentResult"] is AgentResult
