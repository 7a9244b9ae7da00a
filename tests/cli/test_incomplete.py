"""One entry that cannot be read or written never ends the rest: it is named, the exit code is 1."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import click
import pytest

from casfs.cli.lazy_group import INCOMPLETE
from casfs.cli.main import COMMANDS
from casfs.cli.main import cli as commands
from casfs.cli.thread.arguments import record_workspace
from tests.support.engine import Cli
from tests.support.helpers import read_tree, write_tree
from tests.support.new_store import init_store
from tests.support.unprivileged import unprivileged

FILES = {"a": b"1", "d": {"x": b"2", "secret": b"3"}, "locked": {"y": b"4"}, "z": b"5"}
LEFT_OUT = (
    "casfs: warning: cannot read locked: Permission denied; it is left out",
    "casfs: warning: cannot read d/secret: Permission denied; it is left out",
)


@pytest.fixture
def place(cli: Cli, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project and a store of a user who is not root; some of it cannot be read."""
    for name in ("CONFIG_HOME", "CACHE_HOME", "DATA_HOME"):
        monkeypatch.setenv(f"XDG_{name}", str(runtime_dir / "xdg"))
    cli.root = runtime_dir / "store"
    init_store(cli.root).close()
    project = write_tree(runtime_dir / "project", FILES)
    for module, _ in COMMANDS.values():  # while they can be read
        import_module(f"casfs.cli.{module}")
    cli("checkpoint", "create", "before", project)
    cli("checkpoint", "restore", "before", runtime_dir / "first")
    cli("status", project)
    with unprivileged(runtime_dir):
        lock(project)
        yield project
        unlock(project)


def lock(project: Path) -> None:
    (project / "d/secret").chmod(0)
    (project / "locked").chmod(0)


def unlock(project: Path) -> None:
    (project / "d/secret").chmod(0o644)
    (project / "locked").chmod(0o755)


def lines(text: str) -> set[str]:
    return {line for line in text.splitlines() if "cannot read" in line}


def test_a_checkpoint_has_the_rest(cli: Cli, place: Path) -> None:
    done = cli("checkpoint", "create", "work", place, code=1)
    assert lines(done.err) == {*LEFT_OUT}
    assert cli("ls", "-R", "work").text.split() == ["a", "d/", "d/x", "z"]
    assert cli("status", place, code=1).text.endswith("\nno changes\n")
    made = cli("checkpoint", "create", "work", place, "--json", code=1).json
    assert [one["path"] for one in made["unreadable"]] == ["locked", "d/secret"]
    assert cli("tree", "build", place, code=1).text.strip() == made["root"]
    unlock(place)
    cli("checkpoint", "create", "work", place)
    assert cli("diff", "before", "work").text == ""


def test_the_directory_itself_fails(cli: Cli, place: Path) -> None:
    (place / "d").chmod(0o300)
    try:
        refused = cli.refused("checkpoint", "create", "work", place / "d", code=1)
    finally:
        (place / "d").chmod(0o755)
    assert refused == f"casfs: cannot read {place}/d: Permission denied\n"
    assert "work" not in cli("checkpoint", "list").text


def test_a_restore_leaves_it_as_it_is(cli: Cli, place: Path) -> None:
    (place / "a").write_bytes(b"edited")
    (place / "new").write_bytes(b"mine")
    done = cli("checkpoint", "restore", "before", place, "--force", code=1)
    assert "casfs: warning: d/secret: Permission denied; it is as it was" in done.err
    assert "casfs: warning: locked: Permission denied; it is as it was" in done.err
    assert (place / "a").read_bytes() == b"1"
    done = cli("checkpoint", "restore", "before", place, "--delete-untracked", code=1)
    unlock(place)
    assert read_tree(place) == {
        b"a": b"1",
        b"d": {b"x": b"2", b"secret": b"3"},
        b"locked": {b"y": b"4"},
        b"z": b"5",
    }


def test_what_cannot_be_written_is_named(cli: Cli, place: Path) -> None:
    unlock(place)
    write_tree(place, {"d": {"x": b"changed", "more": b"6"}, "z": b"changed"})
    cli("checkpoint", "create", "after", place)
    os.seteuid(0)
    os.chown(place / "d", 0, 0)
    os.seteuid(65534)
    done = cli("checkpoint", "restore", "before", place, code=1)
    assert "casfs: warning: d/more: Permission denied; it is as it was" in done.err
    assert "casfs: warning: d/x: Permission denied; it is as it was" in done.err
    assert (place / "z").read_bytes() == b"5"
    assert cli("status", place).text.endswith("\nA d/more\nM d/x\n")


def test_a_full_restore_has_the_rest(cli: Cli, tmp_path: Path) -> None:
    """As of a file of 4 GiB to a file system that has none."""
    big = 24 << 20
    files = {"big": b"\1" * big, "d": {"big": b"\2" * big, "x": b"2"}, "z": b"5"}
    cli("checkpoint", "create", "work", write_tree(tmp_path / "w", files))
    with file_size_limit(big - 1):
        done = cli("checkpoint", "restore", "work", tmp_path / "again", code=1)
    assert "casfs: warning: big: File too large; it is as it was" in done.err
    assert "casfs: warning: d/big: File too large; it is as it was" in done.err
    assert read_tree(tmp_path / "again") == {b"d": {b"x": b"2"}, b"z": b"5"}
    assert cli("status", tmp_path / "again").text.endswith("\nD big\nD d/big\n")
    cli("checkpoint", "restore", "work", tmp_path / "again", "--force")
    assert (tmp_path / "again/big").stat().st_size == big


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_a_thread_has_the_rest(cli: Cli, place: Path) -> None:
    with click.Context(commands, obj=str(cli.root)) as ctx:
        fields = record_workspace(str(place))
    assert ctx.meta[INCOMPLETE]
    assert cli("ls", "-R", fields["workspace"]).text.split() == ["a", "d/", "d/x", "z"]
