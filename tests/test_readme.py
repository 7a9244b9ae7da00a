"""README.md: it says first what casfs is, and its first hour runs in an empty directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import console_docs
from tests.support.programs import needs_device
from tests.support.served import CASFS

PAGE = Path(__file__).resolve().parent.parent / "README.md"
TEXT = PAGE.read_text("utf-8")


def test_the_first_lines_say_what_it_is_and_for_whom() -> None:
    begin = " ".join(TEXT.splitlines()[:7])
    for word in ("agents", "content-addressed", "files", "For"):
        assert word in begin


def test_install_comes_before_use() -> None:
    titles = ("./mount.sh demo", "tests/run.sh", "pipx", "## First hour")
    order = [TEXT.index(one) for one in titles]
    assert order == sorted(order)


@needs_device
def test_the_first_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "home", tmp_path / "hour"
    home.mkdir(exist_ok=True)
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("CASFS_STORE", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, content in console_docs.files(TEXT):
        (folder / name).write_text(content)
    found = console_docs.commands(TEXT)
    assert len(found) > 20
    try:
        for line, shown in found:
            console_docs.run(line, shown, folder, stderr=subprocess.STDOUT)
    finally:
        for line in ("umount -l mnt", "daemon stop"):
            subprocess.run([*CASFS, *line.split()], cwd=folder, capture_output=True)
