"""What a run says of what it did not record, and the options that decide it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import planted
from tests.support.engine import Cli, spawn
from tests.support.helpers import write_tree

TREE = {
    "a.txt": b"a",
    "b.log": b"b",
    ".env": b"TOKEN=1",
    "package.json": b"{}",
    "node_modules": {"m": b""},
    "x": {"__pycache__": {"c": b""}},
    "y": {"__pycache__": {"c": b""}},
    ".git": {"HEAD": b"", "objects": {}, "refs": {}},
}
EXCLUDED = {
    ".git": "a git repository",
    "node_modules": "derived from package.json",
    "x/__pycache__": "derived files",
    "y/__pycache__": "derived files",
}
VERBS = [("checkpoint", "create", "work"), ("tree", "build")]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "w", TREE)


def reasons(value: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {one["path"]: one["reason"] for one in value["excluded"]}


@pytest.mark.parametrize("verb", VERBS)
def test_a_run_says_what_it_left_out(cli: Cli, work: Path, verb: tuple[str, ...]) -> None:
    os.link(work / "a.txt", work / "same.txt")
    made = cli(*verb, work)
    found = set(made.err.splitlines())
    (line,) = (line for line in found if "left out" in line)
    private, left_out = line.split("; ")
    assert private == (
        "casfs: private, kept in this store only: .env"
        " (to share one: the settings snapshot.work and snapshot.allow)"
    )
    records = " (--no-default-excludes records them)"
    assert left_out.startswith("left out: ")
    assert left_out.endswith(records)
    names = left_out.removeprefix("left out: ").removesuffix(records)
    assert set(names.split(", ")) == {".git", "node_modules", "__pycache__ (2)"}
    assert found - {line} == {"casfs: not kept: 2 hard links"}
    shown = cli(*verb, work, "--json")
    assert shown.err == ""
    assert reasons(shown.json) == EXCLUDED
    assert shown.json["notKept"] == {"hardLinks": 2}
    assert shown.json["private"] == [{"path": ".env", "reason": "its name"}]
    assert shown.json["secrets"] == shown.json["purged"] == []
    assert cli(*verb, work, "--no-default-excludes", "--json").json["excluded"] == []


@pytest.mark.parametrize("verb", VERBS)
def test_patterns_are_given(cli: Cli, work: Path, verb: tuple[str, ...]) -> None:
    (work / ".casfsignore").write_text("*.log\n")
    options = ("--exclude", "*.txt", "--exclude", "!node_modules/", "--exclude", ".env")
    made = cli(*verb, work, *options, "--json").json
    assert reasons(made) == {
        path: reason for path, reason in EXCLUDED.items() if path != "node_modules"
    } | dict.fromkeys(("a.txt", "b.log", ".env"), "an ignore pattern")
    assert "left out by pattern: " in cli(*verb, work, *options).err
    line = cli.refused(*verb, work, "--exclude", "!", code=4)
    assert "--exclude: '!' is not a valid pattern" in line


@pytest.mark.parametrize("verb", VERBS)
def test_a_dry_run_stores_nothing(cli: Cli, work: Path, verb: tuple[str, ...]) -> None:
    before = cli("stats", "--json").json
    shown = cli(*verb, work, "--dry-run")
    assert shown.text == "would record 4 files, 11 bytes\n"
    assert "left out: .git" in shown.err
    assert "private, kept in this store only: .env" in shown.err
    found = cli(*verb, work, "--dry-run", "--json").json
    assert (found["dryRun"], found["files"], reasons(found)) == (True, 4, EXCLUDED)
    assert cli("stats", "--json").json == before
    assert cli("checkpoint", "list", "--json").json == []
    cli.refused(*verb, work / "none", "--dry-run", code=3)


@pytest.mark.parametrize("verb", VERBS)
def test_secrets_in_the_work_are_named_once_with_their_line(
    cli: Cli, work: Path, verb: tuple[str, ...]
) -> None:
    """What git tracks is work. The remedies work."""
    shutil.rmtree(work / ".git")
    (work / "conf").write_bytes(planted.settings_file())
    subprocess.run(["git", "init", "-q", work], check=True)
    subprocess.run(["git", "-C", work, "add", "conf"], check=True)
    lines = [line for line in cli(*verb, work).err.splitlines() if "with a secret" in line]
    assert len(lines) == 1
    assert f"conf: recorded with a secret ({planted.TOKEN_KIND} in line 2)" in lines[0]
    assert planted.token().decode() not in lines[0]
    found = cli(*verb, work, "--json").json
    assert found["secrets"] == [{"path": "conf", "kind": planted.TOKEN_KIND, "line": 2}]
    assert "--exclude conf" in lines[0]
    assert cli(*verb, work, "--exclude", "conf", "--json").json["secrets"] == []


def test_allowed_secrets_are_not_named(cli: Cli, work: Path) -> None:
    shutil.rmtree(work / ".git")
    (work / "conf").write_bytes(planted.settings_file())
    made = cli("checkpoint", "create", "work", work, "--allow-secret", "--json").json
    assert made["secrets"] == []
    assert [one["path"] for one in made["private"]] == [".env"], "a name is no alarm"


def test_an_untracked_file_with_a_secret_is_private(cli: Cli, work: Path) -> None:
    shutil.rmtree(work / ".git")
    subprocess.run(["git", "init", "-q", work], check=True)
    (work / "conf").write_bytes(planted.settings_file())
    made = cli("checkpoint", "create", "work", work, "--json").json
    assert {one["path"] for one in made["private"]} == {".env", "conf"}
    assert made["secrets"] == []
    assert cli("ls", "work", "--json").json
    assert {"conf", ".env"}.isdisjoint(one["name"] for one in cli("ls", "work", "--json").json)


def test_evidence_comes_and_goes(cli: Cli, work: Path) -> None:
    def names() -> set[str]:
        cli("checkpoint", "create", "work", work)
        return {one["name"] for one in cli("tree", "ls", "work", "--json").json}

    assert "node_modules" not in names()
    (work / "package.json").unlink()
    assert "node_modules" in names()
    (work / "package.json").write_text("{}")
    assert "node_modules" not in names()
    (work / "x/CACHEDIR.TAG").write_bytes(b"Signature: 8a477f597d28d172789f06886806bc55")
    assert "x" not in names()


def test_a_file_with_a_name_of_controls_is_shown_safely(cli: Cli, tmp_path: Path) -> None:
    work = write_tree(tmp_path / "w", {"\x1b[2J": {"__pycache__": {}}})
    assert "\\x1b[2J/__pycache__" in cli("tree", "build", work).err


@pytest.mark.parametrize("kind", ["fifo", "endless", "large"])
def test_a_pattern_file_that_an_agent_made_to_harm(cli: Cli, tmp_path: Path, kind: str) -> None:
    place = write_tree(tmp_path / "harm", {"f": b""})
    file = place / ".casfsignore"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "endless":
        file.symlink_to("/dev/zero")
    else:
        file.write_bytes(b"a" * ((1 << 20) + 1))
    made = spawn("--store", cli.root, "checkpoint", "create", "x", place)
    assert made.returncode == 4
    reason = {
        "fifo": "not a regular file",
        "endless": "a link that leads out; put the patterns into a file",
        "large": "larger than 1 MiB",
    }[kind]
    assert made.stderr.endswith(f".casfsignore: {reason}\n")
