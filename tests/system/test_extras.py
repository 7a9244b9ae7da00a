"""The extras: one table, and the command of the installer in use."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from casfs.system import extras

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_pyproject_and_of_the_readme():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == extras.DISTRIBUTION
    assert set(project["optional-dependencies"]) - {"dev"} == set(extras.EXTRAS)
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", (ROOT / "README.md").read_text(), re.M)
    assert dict(rows) == {name: one.purpose for name, one in extras.EXTRAS.items()}


def test_the_installed_distribution_has_the_name():
    assert metadata.distribution(extras.DISTRIBUTION).entry_points


@pytest.mark.parametrize(
    ("mark", "line"),
    [
        ("pipx_metadata.json", "pipx install --force 'casfs-store[mcp,web]'"),
        ("uv-receipt.toml", "uv tool install 'casfs-store[mcp,web]'"),
        ("other", "pip install 'casfs-store[mcp,web]'"),
    ],
)
def test_the_line_is_that_of_the_installer(monkeypatch, tmp_path, mark, line):
    (tmp_path / mark).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert extras.install_line("mcp", "web") == line


def test_a_missing_extra_has_its_line(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    assert extras.missing("acp") == extras.install_line("acp")
    assert extras.missing("llm") == ""
