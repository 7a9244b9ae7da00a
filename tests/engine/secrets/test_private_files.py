"""Private files as they lie in a directory."""

from __future__ import annotations

import os
import time
from pathlib import Path

from engine.secrets.private_files import PrivateFiles
from tests.support.helpers import write_tree


def test_what_is_read(tmp_path: Path) -> None:
    project = write_tree(
        tmp_path / "project",
        {
            ".env": b"A=1",
            "README": b"text",
            "api": {"config": {"credentials.json": b"{}"}},
            "a": {"b": {"c": {"d": {".env": b"too deep"}}}},
            "node_modules": {"x": {".env": b"of a package"}},
        },
    )
    write_tree(tmp_path / "elsewhere", {"shared": b"B=2"})
    (project / ".env.local").symlink_to("../elsewhere/shared")
    (project / ".env.gone").symlink_to("nowhere")
    os.mkfifo(project / ".env.pipe")
    (project / ".env.large").write_bytes(b"x" * 101)
    (project / "id_rsa").mkdir()
    found = dict(PrivateFiles(project, max_bytes=100).changed())
    assert found == {b".env": b"A=1", b".env.local": b"B=2", b"credentials.json": b"{}"}


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    assert list(PrivateFiles(tmp_path / "nowhere", max_bytes=100).changed()) == []


def test_what_has_changed_is_read_again(tmp_path: Path) -> None:
    project = write_tree(tmp_path / "project", {".env": b"A=1", "api": {".env": b"B=1"}})
    old = time.time_ns() - 10**9
    for path in (project / ".env", project / "api/.env", project / "api", project):
        os.utime(path, ns=(old, old))
    time.sleep(0.05)  # their own times of change are now
    files = PrivateFiles(project, max_bytes=100)
    assert sorted(files.changed()) == [(b".env", b"A=1"), (b".env", b"B=1")]
    assert list(files.changed()) == []
    (project / "api/.env").write_bytes(b"B=2")
    (project / "api/new").mkdir()
    (project / "api/new/.env").write_bytes(b"C=1")
    assert sorted(files.changed()) == [(b".env", b"B=2"), (b".env", b"C=1")]
    time.sleep(0.05)
    list(files.changed())
    assert list(files.changed()) == []
