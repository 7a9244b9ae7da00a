"""The page about the command line names every command and every exit code, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from casfs import errors
from tests.support.output_schemas import commands

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/cli.md").read_text("utf-8")


ALL = {f"casfs {words}": command for words, command in commands()}


@pytest.mark.parametrize("command", ALL)
def test_every_command_is_shown(command: str) -> None:
    assert re.search(rf"^\$ {command}\b", PAGE, re.MULTILINE)


def test_no_other_command_is_shown() -> None:
    lines = re.findall(r"^\$ (casfs \S+(?: \S+)?)", PAGE, re.MULTILINE)
    assert lines
    assert [line for line in lines if line not in ALL and line.rsplit(" ", 1)[0] not in ALL] == []


def test_options_that_are_named_exist() -> None:
    known = {option for one in ALL.values() for found in one.params for option in found.opts}
    known |= {option for one in ALL.values() for p in one.params for option in p.secondary_opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE))
    assert named - known <= {"--help", "--store", "--color"}


def test_every_exit_code_is_explained() -> None:
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    codes = {one.exit_code for one in kinds if issubclass(one, errors.CasfsError)}
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}
    assert rows == codes | {0, 130}


@pytest.mark.parametrize("noun", ["workspace", "action", "plugin"])
def test_the_overviews_name_what_there_is(noun: str) -> None:
    for page in ("README.md", "CHANGELOG.md"):
        assert re.search(rf"\b{noun} [a-z]+", (ROOT / page).read_text("utf-8")), page
