"""Safe defaults of `checkpoint create`: no whole home or machine, no more than is meant."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from tests.support.engine import Cli
from tests.support.helpers import write_tree

REFUSED = "refusing to record the root or home directory"


@pytest.fixture
def home() -> Path:
    """Set for each test, with nothing of the machine's owner in it."""
    return write_tree(Path(os.environ["HOME"]), {"file": b"1"})


@pytest.mark.parametrize("path", ["", ".", "../home", "..", "../.."])
def test_no_home_and_nothing_that_it_is_in(cli: Cli, home: Path, path: str) -> None:
    assert REFUSED in cli.refused("checkpoint", "create", "x", home / path, code=4)
    assert cli("checkpoint", "list").text == ""


def test_no_machine_and_no_home_by_another_name(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = home / "link"
    link.symlink_to(home)
    (home / "at-root").symlink_to("/")
    for path in ("/", link, home / "at-root"):
        assert REFUSED in cli.refused("checkpoint", "create", "x", path, code=4)
    monkeypatch.setenv("HOME", str(home / "elsewhere"))
    own = pwd.getpwuid(os.getuid()).pw_dir
    if os.path.isdir(own):
        assert REFUSED in cli.refused("checkpoint", "create", "x", own, code=4)


def test_force_means_it(cli: Cli, home: Path) -> None:
    cli("checkpoint", "create", "x", home, "--force")
    cli("checkpoint", "create", "x", write_tree(home / "project", {"f": b"2"}))
    assert len(cli("checkpoint", "list", "--json").json) == 2


def test_more_than_is_allowed(cli: Cli, tmp_path: Path) -> None:
    work = write_tree(tmp_path / "w", {"a": b"x" * 3000, "__pycache__": {"b": b"x" * 9000}})
    line = cli.refused("checkpoint", "create", "x", work, "--max-size", "2999", code=4)
    assert "w holds more than 2999 bytes; leave something out (.casfsignore), or raise" in line
    assert cli("checkpoint", "list").text == ""
    cli("checkpoint", "create", "x", work, "--max-size", "3000")


def test_the_store_does_not_record_itself(cli: Cli) -> None:
    work = write_tree(cli.root.parent / "w", {"f": b"1"})
    inner = work / "store"
    cli.root.rename(inner)
    try:
        store = ("--store", inner)
        first = cli(*store, "checkpoint", "create", "x", work, "--json").json
        again = cli(*store, "checkpoint", "create", "x", work, "--json").json
        built = cli(*store, "tree", "build", work, "--json").json
        assert first["root"] == again["root"] == built["hash"]
        assert first["stats"]["files"] == built["files"] == 1
        line = cli.refused(*store, "checkpoint", "create", "x", inner, code=4)
        assert "is the store itself" in line
    finally:
        inner.rename(cli.root)


def test_one_that_would_be_equal_is_skipped(cli: Cli, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", {"f": b"1"})
    create = ("checkpoint", "create", "app", source, "--skip-if-unchanged")
    first = cli(*create).word
    assert cli(*create).text.startswith(f"{first} unchanged; 1 files seen")
    value = cli(*create, "--json").json
    assert (value["id"], value["skipped"]) == (first, True)
    (source / "f").write_bytes(b"2")
    second = cli(*create, "--json").json
    assert (second["skipped"], second["id"] > first) == (False, True)
    assert len(cli("checkpoint", "list", "app", "--json").json) == 2
    assert cli(*create[:-1]).word > second["id"]
