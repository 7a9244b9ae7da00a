"""Lines are bytes, as for git: texts that are not UTF-8 have diffs, blame and three-way merges."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from casfs.checkpoints import create
from casfs.history import details, versions
from casfs.history.blame import blame
from casfs.store.store import Store
from casfs.trees.diff import unified_diff
from tests.support.helpers import put_tree
from tests.trees.diff.test_merge import merged

TEXTS = {
    "latin-1": ["fünf\n", "übermäßig\n", "schön\n", "drei\n", "vier\n", "Käse\n"],
    "shift-jis": ["日本\n", "東京\n", "大阪\n", "京都\n", "表示\n", "ソース\n"],
    "euc-kr": ["서울\n", "부산\n", "대구\n", "인천\n", "광주\n", "대전\n"],
}
EACH = pytest.mark.parametrize("encoding", TEXTS)


def text(encoding: str, **changed: str) -> bytes:
    lines = [changed.get(f"line{at}", line) for at, line in enumerate(TEXTS[encoding])]
    return "".join(lines).encode(encoding)


@EACH
def test_a_patch_is_what_git_applies(store: Store, tmp_path: Path, encoding: str) -> None:
    old, new = text(encoding), text(encoding, line2="changed\n")
    patch = unified_diff.patch(store, put_tree(store, {"f": old}), put_tree(store, {"f": new}))
    assert b"-" + TEXTS[encoding][2].encode(encoding) in patch
    (tmp_path / "f").write_bytes(old)
    subprocess.run(["git", "apply", "-"], input=patch, cwd=tmp_path, check=True)
    assert (tmp_path / "f").read_bytes() == new


@EACH
def test_a_merge_is_that_of_git(store: Store, tmp_path: Path, encoding: str) -> None:
    base, ours, theirs = (
        text(encoding),
        text(encoding, line0="ours\n"),
        text(encoding, line5="theirs\n"),
    )
    for name, content in (("base", base), ("ours", ours), ("theirs", theirs)):
        (tmp_path / name).write_bytes(content)
    command = ["git", "merge-file", "-p", "ours", "base", "theirs"]
    expected = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout
    tree, conflicts, _ = merged(store, {"f": base}, {"f": ours}, {"f": theirs})
    assert conflicts == []
    assert tree == put_tree(store, {"f": expected})


@EACH
def test_blame_has_lines(disk_store: Store, tmp_path: Path, encoding: str) -> None:
    place = tmp_path / "p"
    place.mkdir()
    made = []
    for content in (text(encoding), text(encoding, line2="changed\n")):
        (place / "f").write_bytes(content)
        made.append(create.create(disk_store, "p", place).checkpoint.id)
    lines = [*details.lines(disk_store, blame(*versions.find(disk_store, "p:f")))]
    assert [line["version"]["revision"] for line in lines] == [
        f"p@{made[at == 2]}" for at in range(6)
    ]
    assert lines[2]["text"] == "changed"
