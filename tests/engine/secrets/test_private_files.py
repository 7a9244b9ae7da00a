"""Private files as they lie in a directory."""

from __future__ import annotations

import os
from pathlib import Path

from engine.secrets import private_files
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
    found = dict(private_files.contents(project, max_bytes=100))
    assert found == {b".env": b"A=1", b".env.local": b"B=2", b"credentials.json": b"{}"}


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    assert list(private_files.contents(tmp_path / "nowhere", max_bytes=100)) == []
