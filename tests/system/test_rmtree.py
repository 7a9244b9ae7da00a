"""Deletion of trees."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from casfs.system import rmtree


def test_several_delete_the_same_tree(tmp_path: Path) -> None:
    for number in range(20):
        top = tmp_path / str(number)
        for folder in range(20):
            (top / f"{folder}/below").mkdir(parents=True)
            (top / f"{folder}/file").touch()
        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(rmtree.delete, [top] * 4)] == [None] * 4
        assert not top.exists()


def test_a_write_protected_tree(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "below").mkdir(parents=True)
    (top / "below/file").touch()
    (top / "below").chmod(0o500)
    rmtree.delete(top)
    assert not top.exists()
