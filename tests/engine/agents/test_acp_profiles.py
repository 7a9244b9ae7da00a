"""Known agents that speak ACP: `acp:NAME` stands for the argv of one, in all notations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from casfs.agents import notation
from casfs.agents.acp_profiles import PROFILES
from casfs.errors import Invalid
from tests.support.engine import Cli


@pytest.mark.parametrize(
    ("value", "config"),
    [
        ("acp:opencode", {"argv": ["opencode", "acp"]}),
        ("acp:gemini", {"argv": ["gemini", "--acp"], "files": False}),
        (
            {"package": "acp:gemini", "config": {"files": True}},
            {"argv": ["gemini", "--acp"], "files": True},
        ),
        ("acp:./mine --stdio 'a b'", {"argv": ["./mine", "--stdio", "a b"]}),
        ('acp:{"argv": ["mine"]}', {"argv": ["mine"]}),
        (
            {"package": "acp:qwen", "config": {"env": {"A": "b"}}},
            {"argv": ["qwen", "--acp"], "env": {"A": "b"}},
        ),
        ("mine", {"argv": ["hermes-acp"], "mode": "plan"}),
        ('mine:{"mode": "default"}', {"argv": ["hermes-acp"], "mode": "default"}),
    ],
)
def test_a_name_is_the_argv(value: object, config: dict[str, Any]) -> None:
    mine = notation.from_value({"package": "acp:hermes", "config": {"mode": "plan"}})
    found = notation.resolved(notation.from_value(value), {"mine": mine})
    assert found == {"name": "acp", "version": "", "config": config}


def test_a_table_may_hold_a_name_and_its_version() -> None:
    table = {"package": "llm:small", "version": ">=0.1", "config": {"baseUrl": "http://h/v1"}}
    found = notation.resolved(notation.from_value(table), {})
    assert (found["name"], found["version"]) == ("llm", ">=0.1")
    assert found["config"]["model"] == "small"
    assert found["config"]["baseUrl"] == "http://h/v1"
    with pytest.raises(Invalid, match="config is not JSON"):
        notation.from_value({"package": "acp:{"})


def test_they_are_listed_as_installed_or_not(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "opencode"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.defpath}")
    listed = {one["name"]: one for one in cli("agent", "list", "--json").json}
    assert {f"acp:{name}" for name in PROFILES} <= listed.keys()
    assert listed["acp:opencode"]["installed"]
    assert listed["acp:opencode"]["argv"] == ["opencode", "acp"]
    assert not listed["acp:goose"]["installed"]
    lines = cli("agent", "list").text.splitlines()
    assert "acp:opencode\t\tinstalled" in lines
    assert "acp:qwen\t\tnot installed: npm install -g @qwen-code/qwen-code" in lines


def test_one_that_is_missing_says_how_to_install_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    said = "no program qwen; to install it: npm install -g @qwen-code/qwen-code"
    assert said in cli.refused("agent", "test", "command:qwen", code=1)
