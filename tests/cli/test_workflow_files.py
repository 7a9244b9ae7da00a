"""`casfs workflow new`, files in YAML, prompts, what `init` brings; the template runs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from casfs.agents.notation import AgentSpec
from casfs.store.store import Store
from casfs.threads import threads
from engine.workflow import registry as workflows
from engine.workflow import shipped
from tests.support.engine import Cli, daemon, loop, rule, shell


def test_a_new_workflow_validates_and_runs(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert cli("workflow", "new", "essay").text == "essay.yaml\n"
    assert "essay.yaml exists" in cli.refused("workflow", "new", "essay", code=4)
    assert "invalid workflow name" in cli.refused("workflow", "new", "../x", code=2)
    assert cli("workflow", "validate", "essay.yaml").text == "ok\n"
    assert cli("workflow", "add", "essay.yaml").text.endswith(" essay\n")
    assert "greeter: Write a greeting.  (agent: command)" in cli("workflow", "show", "essay").text
    shown = cli("workflow", "show", "essay", "--json").out
    assert cli("workflow", "add", "-", stdin=shown).word == cli("workflow", "list").text.split()[1]
    with daemon(cli.root):
        asked = ("thread", "start", "essay", "--input", "World", "--workspace", folder)
        id = cli(*asked, "--wait").word
    with Store.open(cli.root) as store:
        path = [one.payload["role"] for one in threads.backwards(store, threads.get(store, id))]
    assert path == ["critic", "greeter", "critic", "greeter"]


def test_the_demo_needs_git(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "git: not found; install it" in bare.refused("demo", code=1)


def test_init_brings_workflows(bare: Cli) -> None:
    bare("init")
    assert [line.split()[0] for line in bare("workflow", "list").text.splitlines()] == [
        name.rpartition(".")[0] for name in shipped.files()
    ]
    bare("workflow", "rm", "hello")
    bare("init")
    assert "hello" not in bare("workflow", "list").text
    bare("init", "--workflows")
    assert "hello" in bare("workflow", "list").text


def test_the_prompt_of_a_role(cli: Cli) -> None:
    name = shipped.TEMPLATE
    cli("workflow", "add", "-", stdin=b"name: hello\n" + shipped.files()[name])
    shown = cli("workflow", "show", "hello", "--prompt", "critic").text
    assert shown.startswith("Read greeting.txt. Approve a greeting")
    assert "(the task of the thread)" in shown
    assert '"enum": ["approved", "rejected"]' in shown
    value = cli("workflow", "show", "hello", "--prompt", "critic", "--json").json
    assert value == {"role": "critic", "prompt": shown}
    message = cli.refused("workflow", "show", "hello", "--prompt", "nobody", code=3)
    assert "no role 'nobody'; there are critic, greeter" in message


def test_next_tells_end_no_rule_and_unknown_role_apart(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(
        "roles: {a: {systemPrompt: Go.}}\n"
        "moderator:\n"
        "  - {from: __start__, to: a}\n"
        "  - {from: a, to: __end__, when: $last('a').meta.done}\n"
    )

    def steps(role: str, **meta: bool) -> bytes:
        return json.dumps([{"role": role, "meta": meta}]).encode()

    asked = ("workflow", "next", file, "--steps", "-")
    assert cli(*asked, stdin=steps("a", done=True)).text == "__end__\n"
    message = cli.refused(*asked, stdin=steps("a"), code=1)
    assert "no rule matches after a; a thread ends here with return code 1" in message
    shown = cli(*asked, "--json", stdin=steps("a"), code=1).json
    assert shown == {"next": None, "returnCode": 1, "summary": "no rule matches after a"}
    assert "no role 'b'" in cli.refused(*asked, stdin=steps("b"), code=3)


def test_one_that_came_from_elsewhere_runs_after_it_was_trusted(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    remote = (tmp_path / "remote").as_uri()
    cli("remote", "add", "r", remote)
    text = cli("workflow", "new", "mine").text
    assert cli("workflow", "add", text.strip()).text
    cli("push", "r", "workflows/mine")
    cli("workflow", "rm", "mine")
    assert "pulled mine: " in cli("pull", "r", "workflows/mine").text
    message = cli.refused("run", "mine", "Do it", str(tmp_path), code=4)
    assert "casfs workflow trust mine" in message
    assert cli("workflow", "list").text.endswith("\tr, not trusted\n")
    assert "  from r, not trusted\n" in cli("workflow", "show", "mine").text
    assert cli("workflow", "trust", "mine").text.endswith("\ntrusted mine\n")
    assert cli("workflow", "list").text.endswith("\tr\n")


def foreign(cli: Cli, tmp_path: Path, name: str, roles: int) -> None:
    """Pulls a workflow of `roles` roles, each with an agent of its own, that is not trusted."""
    cli("remote", "add", "r", (tmp_path / "remote").as_uri())
    places = [f"r{number}" for number in range(roles)]
    scripts = {place: f"true {'x' * 300} {place}\x1b[2J" for place in places}
    agents = {
        place: AgentSpec(name="command", version="", config=shell(script))
        for place, script in scripts.items()
    }
    role = loop(1)["roles"]["a"]
    steps = ["__start__", *places, "__end__"]
    definition = {**loop(1), "name": name, "roles": {one: {**role, "name": one} for one in places}}
    definition["moderator"] = [rule(*pair) for pair in pairwise(steps)]
    with Store.open(cli.root) as store:
        workflows.add(store, definition, agents)
    cli("push", "r", f"workflows/{name}")
    cli("workflow", "rm", name)
    cli("pull", "r", f"workflows/{name}")


def test_all_that_one_may_run_is_shown(cli: Cli, tmp_path: Path) -> None:
    foreign(cli, tmp_path, "mine", roles=9)
    message = cli.refused("run", "mine", "Do it", tmp_path, code=4)
    assert "(9 roles, not all is shown here)" in message
    said = cli("workflow", "trust", "mine")
    assert [f" r{number}\\u001b[2J" in said.text for number in range(9)] == [True] * 9
    assert "\x1b" not in said.text


def test_a_foreign_one_does_not_shadow_a_profile(cli: Cli, tmp_path: Path) -> None:
    foreign(cli, tmp_path, "mender", roles=1)
    (cli.root / "config.toml").write_text('[agents.mender]\npackage = "command:echo mended"\n')
    (tmp_path / "work").mkdir()
    with daemon(cli.root):
        done = cli("run", "mender", "Do it", tmp_path / "work", "--no-apply")
    assert "mended\n" in done.text


def test_faults_of_agents_in_yaml_have_their_line(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "roles:\n  a:\n    systemPrompt: x\n    agent:\n      package: workflow\n      config:\n"
        "        workflow: x\n        agents:\n          b: 5\n"
        '  c:\n    systemPrompt: x\n    agent: \'llm:{"model": "m"}\'\n'
        "moderator:\n  - {from: __start__, to: a}\n  - {from: a, to: c}\n"
        "  - {from: c, to: __end__}\n"
    )
    errors = cli("workflow", "validate", path, "--json", code=4).json["errors"]
    assert errors == [
        "line 9: $.roles.a.agent: config.agents.b: must be of type string or object",
        "line 12: $.roles.c.agent: config: one of baseUrl or baseUrlEnv is required",
    ]
