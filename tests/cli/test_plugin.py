"""`casfs plugin`: what it prints, its JSON, its exit codes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.engine import Cli
from tests.support.helpers import read_tree, write_tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "linter", {"run": b"run\n", "rules": {"a": b"a\n"}})


def test_sync_list_materialize(cli: Cli, folder: Path, tmp_path: Path) -> None:
    synced = cli("plugin", "sync", "linter", "1.0", folder)
    assert synced.text == f"{synced.word} linter 1.0 stored from {folder}\n"
    assert cli("node", "get", synced.word).json["type"] == "directory"
    again = cli("plugin", "sync", "linter", "1.0", folder)
    assert again.text == f"{synced.word} linter 1.0 already stored, from {folder}\n"
    assert again.err == ""
    listed = cli("plugin", "list").text.rstrip("\n").split("\t")
    assert (listed[:3], listed[4]) == (["linter", "1.0", synced.word], str(folder))
    done = cli("plugin", "materialize", "linter", "1.0", tmp_path / "out")
    assert done.text == f"{synced.word} linter 1.0 written to {tmp_path / 'out'}\n"
    assert read_tree(tmp_path / "out") == read_tree(folder)


def test_json(cli: Cli, folder: Path, tmp_path: Path) -> None:
    assert cli("plugin", "list", "--json").json == []
    shown = cli("plugin", "sync", "linter", "1.0", folder, "--json").json
    assert set(shown) == {
        "name", "version", "root", "source", "commit", "syncedAt", "stored", "warning",
    }  # fmt: skip
    assert (shown["stored"], shown["warning"], shown["commit"]) == (True, None, None)
    listed = cli("plugin", "list", "--json").json
    assert listed == [{key: shown[key] for key in listed[0]}]
    out = tmp_path / "out"
    assert cli("plugin", "materialize", "linter", "1.0", out, "--json").json["directory"] == str(
        out
    )


def test_refresh(cli: Cli, folder: Path) -> None:
    first = cli("plugin", "sync", "linter", "1.0", folder).word
    (folder / "run").write_text("other\n")
    assert cli("plugin", "sync", "linter", "1.0", folder).word == first
    assert cli("plugin", "sync", "linter", "1.0", folder, "--refresh").word != first


def test_a_moved_tag(cli: Cli, folder: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(
            ["git", "-C", folder, *identity, *arguments], check=True, capture_output=True
        )

    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message=one")
    git("tag", "v1")
    first = cli("plugin", "sync", "linter", "v1", f"file://{folder}")
    git("commit", "--quiet", "--allow-empty", "--message=two")
    git("tag", "--force", "v1")
    again = cli("plugin", "sync", "linter", "v1", f"file://{folder}")
    assert again.word == first.word
    assert again.err.startswith("casfs: warning: linter v1: it has moved: was ")
    assert again.err.count("\n") == 1


def test_what_is_refused(cli: Cli, folder: Path, tmp_path: Path) -> None:
    cli.refused("plugin", "sync", "a/b", "1.0", folder, code=4)
    cli.refused("plugin", "sync", "linter", "1.0", tmp_path / "none", code=3)
    cli.refused("plugin", "materialize", "linter", "1.0", tmp_path / "out", code=3)
    (tmp_path / "bad.tar").write_bytes(b"no tarball")
    cli.refused("plugin", "sync", "linter", "1.0", tmp_path / "bad.tar", code=4)
    cli("plugin", "sync", "linter", "1.0", folder)
    cli.refused("plugin", "materialize", "linter", "1.0", folder, code=4)
