"""What a user without root gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.workspaces import overlay_mount, strategies, strategy_choice
from tests.support.engine import Cli
from tests.support.strategies import skip_without
from tests.worktrees.conftest import add, git


@pytest.fixture(autouse=True)
def without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (strategies.NATIVE, strategies.OVERLAY):
        monkeypatch.setitem(strategy_choice.CHECKS, name, lambda near: "only for root")


@pytest.mark.parametrize("forgets", [True, False])
@skip_without("fuse-overlayfs")
def test_a_fuse_overlayfs_that_passes_else_a_copy(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    monkeypatch.setattr(overlay_mount, "forgets_deletions", lambda: forgets)
    answer = cli("worktree", "add", "try", "--json")
    assert answer.json["backend"] == ("copy" if forgets else "fuse-overlayfs")
    assert ("casfs: warning: a copy of " in answer.err) == forgets
    worktree = Path(answer.json["directory"])
    assert git(worktree, "status", "--porcelain") == git(project, "status", "--porcelain")
    add(cli, "same", "--backend", "fuse-overlayfs")
    for name in ("try", "same"):
        cli("worktree", "rm", name)


@skip_without("fuse-overlayfs")
def test_what_is_said_of_the_one_that_is_installed(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try", "--backend", "fuse-overlayfs")
    (worktree / "new").write_text("new")
    (worktree / "new").rename(worktree / "src/b.py")
    (worktree / "src/b.py").rename(worktree / "new")
    assert (worktree / "src/b.py").exists() == overlay_mount.forgets_deletions()
