"""`casfs config`: settings are set and unset, comments stay."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from casfs.errors import Refused
from casfs.system.config_edit import with_setting
from tests.support.engine import Cli

TEXT = """# mine
[gc]
# a day is too long
grace_s = 60  # "seconds"

[agents.writer]
package = "llm"
"""


def test_set_and_unset(cli: Cli) -> None:
    path = cli.root / "config.toml"
    path.write_text(TEXT)
    assert cli("config", "set", "runs.limit", "4").text == f"runs.limit = 4  ({path})\n"
    cli("config", "set", "gc.grace_s", "90")
    cli("config", "set", "actions.cacheable", '["make", "cargo build"]')
    shown = {one["name"]: one["value"] for one in cli("config", "list", "--json").json}
    assert (shown["runs.limit"], shown["gc.grace_s"]) == (4, 90)
    assert shown["actions.cacheable"] == ["make", "cargo build"]
    for line in ("# mine", "# a day is too long", 'grace_s = 90  # "seconds"', 'package = "llm"'):
        assert line in path.read_text().splitlines()
    made = cli("config", "unset", "runs.limit", "--json").json
    assert made == {"name": "runs.limit", "value": 8, "from": "default"}
    assert "limit" not in path.read_text()


def test_what_is_refused(cli: Cli) -> None:
    assert "no setting 'runs.limt'" in cli.refused("config", "set", "runs.limt", "4", code=3)
    assert "not a whole number" in cli.refused("config", "set", "runs.limit", "x", code=4)
    assert "must be 1 or more" in cli.refused("config", "set", "runs.limit", "0", code=4)
    assert not (cli.root / "config.toml").exists()


def test_the_user_s_file(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    cli("config", "set", "--user", "runs.limit", "3")
    assert (tmp_path / "xdg/casfs/config.toml").read_text() == "[runs]\nlimit = 3\n"


def test_edit_calls_the_editor_and_checks(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "sh -c 'echo limit = 1 >\"$0\"'")
    assert "no setting 'limit'" in cli("config", "edit", code=4).err
    assert (cli.root / "config.toml").read_text() == "limit = 1\n"


FORMS = ["runs.limit = 2\n", "[runs]\nlimit = [\n1]\n", "runs = {limit = 2}\n"]


@pytest.mark.parametrize("text", FORMS)
def test_another_form_of_a_value_is_left_to_the_editor(text: str) -> None:
    tomllib.loads(text)
    with pytest.raises(Refused, match="casfs config edit"):
        with_setting(text, "runs.limit", 5)
