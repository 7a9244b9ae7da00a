"""Which agent plays a role: precedence, profiles, hashes, programs that do not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.threads import threads
from engine.threads import role_agents
from engine.workflow import registry as workflows
from tests.support.engine import ONE, Cli, begin, daemon, says, shell

ONE_FILE = b"""
name: one
roles: {a: {systemPrompt: Go., agent: 'command:echo of-workflow'}}
moderator: [{from: __start__, to: a}, {from: a, to: __end__}]
"""


def played(cli: Cli, *options: str | Path) -> Any:
    """The argv that plays role `a` of a thread that is started with these options."""
    id = cli("thread", "start", "one", "--input", "Go.", *options).word
    with Store.open(cli.root) as store:
        found = threads.get(store, id)
        payload = store.node(threads.agents(store, found)["a"], "agent").payload
    return payload["config"]["argv"]


@pytest.fixture
def one(cli: Cli) -> Cli:
    cli("workflow", "add", "-", stdin=ONE_FILE)
    return cli


def test_the_precedence(one: Cli, tmp_path: Path) -> None:
    (one.root / "config.toml").write_text(
        "[agents]\ndefault = 'command:echo of-default'\nfast = 'command:echo of-profile'\n"
    )
    file = tmp_path / "agents.toml"
    file.write_text('[agents.a]\npackage = "command"\nconfig = {argv = ["echo", "of-file"]}\n')
    bare = b"name: bare\n" + ONE_FILE.replace(b"name: one", b"").replace(
        b", agent: 'command:echo of-workflow'", b""
    )
    one("workflow", "add", "-", stdin=bare)
    with daemon(one.root):
        files = ("--agents", file)
        assert played(one) == ["echo", "of-workflow"]
        assert played(one, *files) == ["echo", "of-file"]
        assert played(one, *files, "--agent", "fast") == ["echo", "of-profile"]
        own = ("--agent", "a=command:echo of-role")
        assert played(one, *files, "--agent", "fast", *own) == ["echo", "of-role"]
        id = one("thread", "start", "bare", "--input", "Go.").word
        with Store.open(one.root) as store:
            hash = threads.agents(store, threads.get(store, id))["a"]
        assert played(one, "--agent", f"a={hash}") == ["echo", "of-default"]
        assert played(one, "--agent", hash[:12]) == ["echo", "of-default"]


def test_a_profile_of_the_store_stands_above_the_users(one: Cli, tmp_path: Path) -> None:
    user = tmp_path / "home/config/casfs/config.toml"
    user.parent.mkdir(parents=True)
    user.write_text("[agents]\nx = 'command:echo user'\ny = 'command:echo user'\n")
    (one.root / "config.toml").write_text("[agents]\nx = 'command:echo store'\n")
    with daemon(one.root):
        assert played(one, "--agent", "x") == ["echo", "store"]
        assert played(one, "--agent", "y") == ["echo", "user"]
        assert played(one, "--agent", 'y:{"argv": ["echo", "laid over"]}') == ["echo", "laid over"]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["a=command"], 4, "--agent a: config.argv is required"),
        (["a=nobody"], 3, "--agent a: no agent or profile 'nobody'"),
        (["a=comand:sh critic.sh"], 3, "no agent or profile 'comand'; did you mean command?"),
        (["a=command:no-such-program"], 4, "--agent a: no program no-such-program on the daemon's"),
        (["a=command:/no/such"], 4, "--agent a: no program /no/such"),
        (["a=workflow:develop"], 4, "--agent a: workflow has no short form"),
        (["a=deadbeef00"], 3, "--agent a: no blob deadbeef00"),
        (["b=command:true"], 4, "no role 'b'; it has a"),
        (["command:true", "command:false"], 2, "an agent for all roles was given already"),
        (["a=broken-profile"], 4, "config.toml: agents.broken: package is required"),
    ],
)
def test_a_fault_names_the_role(one: Cli, options: list[str], code: int, said: str) -> None:
    if "broken" in said:
        (one.root / "config.toml").write_text("[agents.broken]\nconfig = {}\n")
    with daemon(one.root):
        flags = [part for option in options for part in ("--agent", option)]
        message = one("thread", "start", "one", "--input", "x", *flags, code=code).err
    assert said in message
    assert one("heads", "threads/").text == ""


def test_a_program_in_the_workspace(one: Cli, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    asked = ("thread", "start", "one", "--input", "x", "--agent", "command:./run.sh")
    with daemon(one.root):
        message = one(*asked, "--workspace", project, code=4).err
        assert "--agent a: no program ./run.sh there: a relative path is one in the" in message
        (project / "run.sh").write_text("#!/bin/sh\n")
        assert played(one, "--agent", "command:./run.sh", "--workspace", project) == ["./run.sh"]


def test_a_file_of_agents_holds_nothing_else(one: Cli, tmp_path: Path) -> None:
    file = tmp_path / "agents.toml"
    for text, said in (
        ("[runs]\nlimit = 1\n", "runs: only [agents.NAME] tables are read here"),
        ("agents = 1", "agents must hold tables"),
        ("[agents]\na = 1", "agents.a: must be a string, or a table"),
        ("[agents.a]\npackage = 'x'\nkey = 1", "agents.a: key: no such field"),
        ("[", "not TOML"),
    ):
        file.write_text(text)
        assert said in one.refused(
            "thread", "start", "one", "--input", "x", "--agents", file, code=4
        )


def test_a_fork_with_another_agent_for_all_roles(cli: Cli) -> None:
    with Store.open(cli.root) as store:
        (store.root or Path()).joinpath("config.toml").write_text(
            "[agents]\nfast = 'command:echo of-profile'\n"
        )
        made = begin(store, ONE, {"a": says({})})
        with daemon(cli.root):
            id = cli("thread", "fork", made.id, "--at", "0", "--agent", "fast").word
            forked = threads.get(store, id)
            node = store.node(threads.agents(store, forked)["a"], "agent")
    assert node.payload["config"] == {"argv": ["echo", "of-profile"]}


@pytest.mark.parametrize("name", ["default", "cafecafe"])
def test_a_profile_may_have_any_name(name: str, store: Store) -> None:
    spec = {"name": "command", "version": "", "config": shell("true")}
    names = role_agents.AgentNames(store, {name: spec}, {})  # type: ignore[dict-item]
    assert names.bindings({"a": {"name": name}})["a"].config == shell("true")


def test_a_model_needs_its_name_only(store: Store) -> None:
    names = role_agents.AgentNames(store, {}, {})
    (bound,) = names.bindings({"a": {"name": "llm", "text": "small"}}).values()
    assert bound.config == {
        "model": "small",
        "baseUrlEnv": "OPENAI_BASE_URL",
        "apiKeyEnv": "OPENAI_API_KEY",
    }
    with pytest.raises(CasfsError, match="an agent's hash takes no version"):
        names.bindings({"a": {"name": "ab" * 32, "text": "x"}})
    assert workflows.default_agents(store, "nothing") == {}


def test_profiles_are_listed(cli: Cli) -> None:
    (cli.root / "config.toml").write_text("[agents]\nfast = 'llm>=0.1:small'\n")
    file = cli.root / "config.toml"
    assert f"fast\t>=0.1\tprofile of llm in {file}\n" in cli("agent", "list").text
    (found,) = [one for one in cli("agent", "list", "--json").json if one["name"] == "fast"]
    assert found == {"name": "fast", "version": ">=0.1", "package": "llm", "file": str(file)}


def test_default_agents_are_checked(cli: Cli) -> None:
    def validated(agent: str) -> str:
        data = ONE_FILE.replace(b"'command:echo of-workflow'", agent.encode())
        return cli("workflow", "validate", "-", stdin=data, code=4 if "{" in agent else 0).text

    wrong = validated("{package: command}")
    assert wrong == "error: line 3: $.roles.a.agent: config.argv is required\n"
    unknown = validated("nobody")
    assert unknown.startswith("warning: line 3: $.roles.a.agent: no agent or profile 'nobody'")
    (cli.root / "config.toml").write_text("[agents]\nnobody = 'llm:small'\n")
    assert validated("nobody") == "ok\n"
