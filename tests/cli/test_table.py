"""Tables, colours and the pager, by the real program on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from casfs.system.sizes import readable
from tests.support.engine import Cli
from tests.support.helpers import write_tree

ESCAPE = b"\x1b["


def on_terminal(cli: Cli, *arguments: str, columns: int = 120, **env: str) -> str:
    """The screen's text after a command, with its escapes."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "PAGER")}
    argv = [sys.executable, "-m", "casfs", "--store", str(cli.root), *arguments]
    done = subprocess.Popen(
        argv, stdin=writer, stdout=writer, stderr=writer, env={**inherited, "TERM": "xterm", **env}
    )
    os.close(writer)
    shown = b""
    with os.fdopen(reader, "rb", buffering=0) as terminal:
        while True:
            try:
                piece = terminal.read(65536)
            except OSError:  # the last writer has closed
                break
            if not piece:
                break
            shown += piece
    assert done.wait(60) == 0, shown
    return shown.decode().replace("\r\n", "\n")


@pytest.fixture
def project(cli: Cli, tmp_path: Path) -> Path:
    folder = write_tree(tmp_path / "w", {"a": b"one\n", "b": b"x" * 3000})
    cli("checkpoint", "create", "work", folder, "-m", "the first\x1b[2J and a long remark " * 5)
    return folder


def test_a_table_has_headers_on_a_terminal_and_none_elsewhere(cli: Cli, project: Path) -> None:
    header, row = on_terminal(cli, "--color", "never", "checkpoint", "list").splitlines()
    assert header.split() == ["CHECKPOINT", "DATE", "FILES", "SIZE", "MESSAGE"]
    assert header.index("DATE") == row.index("20", row.index(" "))
    assert len(row) <= 120
    assert row.endswith("…")
    assert "2.9K" in row
    (line,) = cli("checkpoint", "list").text.splitlines()
    fields = line.split("\t")
    assert (fields[2], fields[3]) == ("2", "3004")
    assert fields[4].count("a long remark") == 5
    assert "\x1b" not in line + row


def test_a_narrow_terminal_gets_a_paragraph_for_each_row(cli: Cli, project: Path) -> None:
    shown = on_terminal(cli, "checkpoint", "list", columns=40).splitlines()
    assert shown[0].startswith("work@")
    assert [line.split(":")[0] for line in shown[1:]] == [
        "  date",
        "  files",
        "  size",
        "  message",
    ]


def test_a_column_without_an_entry_is_left_out_on_a_terminal(cli: Cli, two: Path) -> None:
    header = on_terminal(cli, "--color", "never", "checkpoint", "list").splitlines()[0]
    assert header.split() == ["CHECKPOINT", "DATE", "FILES", "SIZE"]
    assert all(line.count("\t") == 4 for line in cli("checkpoint", "list").text.splitlines())


def test_colours_are_for_a_terminal_that_wants_them(cli: Cli, project: Path) -> None:
    assert "\x1b[1m" in on_terminal(cli, "checkpoint", "list")
    assert "\x1b" not in on_terminal(cli, "checkpoint", "list", NO_COLOR="1")
    assert "\x1b" not in on_terminal(cli, "checkpoint", "list", TERM="dumb")
    assert "\x1b" not in on_terminal(cli, "--color", "never", "checkpoint", "list")
    assert "\x1b[1m" in on_terminal(cli, "--color=always", "checkpoint", "list", NO_COLOR="1")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (870, "870"), (1024, "1.0K"), (35_000_000, "33M"), (1 << 31, "2.0G")],
)
def test_a_readable_size(size: int, text: str) -> None:
    assert readable(size) == text


@pytest.fixture
def two(cli: Cli, tmp_path: Path) -> Path:
    """A directory with two checkpoints: a changed, b gone, c\\x1b new."""
    folder = write_tree(tmp_path / "d", {"a": b"one\n", "b": b"x\n"})
    cli("checkpoint", "create", "d", folder)
    (folder / "a").write_text("two\n")
    (folder / "b").unlink()
    (folder / "c\x1b").write_text("new\n")
    cli("checkpoint", "create", "d", folder)
    return folder


def test_a_diff_is_coloured_as_by_git(cli: Cli, two: Path) -> None:
    shown = on_terminal(cli, "diff", "d~1", "d", PAGER="cat")
    assert shown.split("\n")[:3] == [
        "\x1b[33mM\x1b[0m a",
        "\x1b[31mD\x1b[0m b",
        "\x1b[32mA\x1b[0m c\\x1b",
    ]
    patch = on_terminal(cli, "diff", "d~1", "d", "--patch", PAGER="cat").split("\n")
    assert "\x1b[31m-one\x1b[0m" in patch
    assert "\x1b[32m+two\x1b[0m" in patch
    assert "\x1b[1m--- a/a\x1b[0m" in patch
    graph = on_terminal(cli, "diff", "d~1", "d", "--stat", PAGER="cat")
    assert "\x1b[32m+\x1b[0m\x1b[31m-\x1b[0m" in graph
    assert b"\x1b" not in cli("diff", "d~1", "d", "--patch").out.replace(b"c\x1b", b"")
    assert b"\x1b[31mD" in cli("diff", "d~1", "d", "--color", "always").out


def test_a_pager_reads_a_diff_and_a_log_on_a_terminal_only(
    cli: Cli, two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager = f"cat >{tmp_path}/paged; echo LESS=$LESS"
    assert on_terminal(cli, "diff", "d~1", "d", PAGER=pager) == "LESS=FRX\n"
    assert "\x1b[33mM" in (tmp_path / "paged").read_text()
    assert "LESS" not in on_terminal(cli, "diff", "d~1", "d", "--json", PAGER=pager)
    monkeypatch.setenv("PAGER", pager)
    assert cli("diff", "d~1", "d").text.startswith("M a\n")


def test_who_leaves_the_pager_early_gets_no_error(cli: Cli, two: Path) -> None:
    (two / "long").write_text("line\n" * 200_000)
    cli("checkpoint", "create", "d", two)
    assert on_terminal(cli, "diff", "d~1", "d", "--patch", PAGER="head -n 1 | tr a-z A-Z") != ""
