"""What is left out by default: directories that are derived by evidence, and nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.trees.snapshot import derived, walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotReport
from tests.support.helpers import Link, put_tree, write_tree

TAG = derived.CACHE_SIGNATURE + b"\n# made by a tool\n"
REPOSITORY = {"HEAD": b"ref: refs/heads/main\n", "objects": {}, "refs": {}}


def excluded(store: Store, root: Path) -> dict[str, str]:
    """What a snapshot with the default rules reports as left out: reasons by path."""
    report = SnapshotReport()
    with store.batch() as batch:
        walker.snapshot(batch, root, IgnoreRules.of(root), report)
    return {os.fsdecode(path): reason for path, reason in report.excluded}


@pytest.mark.parametrize("name", sorted(derived.NAMES))
def test_names_that_only_tools_use(store: Store, tmp_path: Path, name: bytes) -> None:
    text = name.decode()
    write_tree(tmp_path / "w", {"a": {"b": {text: {"x": b""}}}, text: {"y": b""}, "src": {}})
    assert excluded(store, tmp_path / "w") == {
        text: "derived files",
        f"a/b/{text}": "derived files",
    }
    write_tree(tmp_path / "v", {"a": {text: b"a file"}, f"{text}2": {}})
    assert excluded(store, tmp_path / "v") == {}


@pytest.mark.parametrize(
    ("evidence", "path"),
    [
        ({"node_modules": {"x": b""}, "package.json": b"{}"}, "node_modules"),
        ({"target": {"x": b""}, "Cargo.toml": b""}, "target"),
        ({"target": {"x": b""}, "pom.xml": b""}, "target"),
        ({".venv": {"pyvenv.cfg": b"", "lib": {}}}, ".venv"),
        ({"venv": {"pyvenv.cfg": b""}}, "venv"),
        ({".git": REPOSITORY}, ".git"),
        ({".git": {"HEAD": b"", "objects": {}}}, ".git"),  # a damaged one
        ({"anything": {"CACHEDIR.TAG": TAG}}, "anything"),
        ({"build": {"x": b""}, "setup.py": b"", ".gitignore": b"build/\n"}, "build"),
        ({"dist": {"x": b""}, "Makefile": b"", ".gitignore": b"/dist\n"}, "dist"),
    ],
)
def test_evidence_leaves_out_at_any_depth(
    store: Store, tmp_path: Path, evidence: dict[str, Any], path: str
) -> None:
    write_tree(tmp_path / "w", {**evidence, "deep": {"er": evidence}})
    assert set(excluded(store, tmp_path / "w")) == {path, f"deep/er/{path}"}
    with store.batch() as batch:
        whole = walker.snapshot(batch, tmp_path / "w", IgnoreRules.of(tmp_path, defaults=False))
    assert whole.node.hash == put_tree(store, {**evidence, "deep": {"er": evidence}})


@pytest.mark.parametrize(
    "tree",
    [
        {"node_modules": {"npm": {"x": b""}}},  # lib/node_modules of an installation
        {"target": {"x": b""}, "package.json": b""},
        {"venv": {"__init__.py": b""}},  # the package of the standard library
        {".venv": {"x": b""}},
        {"operations": {"build": {"x": b""}}, "setup.py": b"", ".gitignore": b"build/\n"},
        {"build": {"x": b""}, "setup.py": b""},
        {"build": {"x": b""}, ".gitignore": b"build/\n"},
        {"dist": {"x": b""}, "setup.py": b"", ".gitignore": b"dist/\n!dist/\n"},
        {"sub": {".git": b"gitdir: ../.git/modules/sub\n"}},  # of a submodule
        {".git": Link(b"elsewhere")},
        {"cache": {"CACHEDIR.TAG": b"Signature: none"}},
        {"cache": {"CACHEDIR.TAG": Link(b"../tag")}, "tag": TAG},
        {"cache": {"CACHEDIR.TAG": {}}},
        {"CACHEDIR.TAG": TAG, "x": b"the recorded directory itself"},
    ],
)
def test_without_evidence_all_is_recorded(
    store: Store, tmp_path: Path, tree: dict[str, Any]
) -> None:
    write_tree(tmp_path / "w", tree)
    assert excluded(store, tmp_path / "w") == {}


GITIGNORES = [
    {".gitignore": b"build\n"},
    {".gitignore": b"!build\n", "p": {".gitignore": b"build\n"}},
    {".gitignore": b"build\n", "p": {".gitignore": b"!build\n"}},
    {".gitignore": b"/p/build\n"},
    {".gitignore": b"/build\n"},
    {".gitignore": b"p/\n!p/build/\n"},
    {".gitignore": b"*\n!p/\n"},
    {".gitignore": b"build/*\n"},
    {".gitignore": b"/\nbuild\\\n**/build/\n"},  # two lines that are no patterns
    {},
]


@pytest.mark.parametrize("tree", GITIGNORES)
def test_gitignore_is_read_as_git_reads_it(
    store: Store, tmp_path: Path, tree: dict[str, Any]
) -> None:
    inner = {**tree.get("p", {}), "Makefile": b"", "build": {"x": b""}}
    root = write_tree(tmp_path / "w", {**tree, "p": inner})
    subprocess.run(["git", "init", "-q", root], check=True)
    git = subprocess.run(["git", "-C", root, "check-ignore", "-q", "p/build"], check=False)
    assert ("p/build" in excluded(store, root)) == (git.returncode == 0)


def test_a_repository_inside_does_not_heed_the_one_around_it(store: Store, tmp_path: Path) -> None:
    inner = {"Makefile": b"", "build": {"x": b""}, ".git": REPOSITORY}
    root = write_tree(tmp_path / "w", {".gitignore": b"build/\n", "p": inner})
    assert set(excluded(store, root)) == {"p/.git"}


def test_the_report_tells_private_names(store: Store, tmp_path: Path) -> None:
    """A name that only certificates and keys share is none: the scanner looks into such files."""
    write_tree(
        tmp_path / "w",
        {
            ".env": b"", ".env.local": b"", ".env.example": b"", ".envrc": b"", "my.env": b"",
            "d": {"id_ed25519": b"", "id_ed25519.pub": b"", ".netrc": b"", "credentials": b""},
            "a.pem": b"", "cert.pem": b"-----BEGIN CERTIFICATE-----\n", ".env.d": {},
        },
    )  # fmt: skip
    report = SnapshotReport()
    with store.batch() as batch:
        walker.snapshot(batch, tmp_path / "w", IgnoreRules(), report)
    assert sorted(report.private) == [
        b".env", b".env.local", b"d/.netrc", b"d/credentials", b"d/id_ed25519",
        b"my.env",
    ]  # fmt: skip
