"""Worktrees that the daemon creates: as those that a program creates by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casfs.cli.worktree import add as adding
from casfs.worktrees import caller
from tests.support.engine import Cli, daemon
from tests.support.strategies import skip_without
from tests.worktrees import test_environment, test_worktree
from tests.worktrees.conftest import add, git, write
from tests.worktrees.test_worktree import STATUS, holding

pytestmark = skip_without("erofs-overlay")


@pytest.mark.parametrize(
    "check",
    [
        test_worktree.test_branches,
        test_worktree.test_a_merge_that_has_begun,
        test_worktree.test_a_file_that_was_changed_unseen_is_read,
        test_worktree.test_what_would_be_lost_is_not_removed,
        test_worktree.test_apply,
        test_environment.test_the_template_of_an_env,
    ],
    ids=lambda check: check.__name__,
)
def test_as_by_itself(cli: Cli, project: Path, check: Callable[[Cli, Path], None]) -> None:
    with daemon(cli.root):
        check(cli, project)


def test_it_is_the_daemon(
    cli: Cli, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(*arguments: Any) -> dict[str, Any]:
        raise AssertionError("not by the daemon")

    with daemon(cli.root), monkeypatch.context() as patch:
        patch.setattr(adding, "_create", alone)
        worktree = add(cli, "try")
        assert holding(worktree) == holding(project)
        assert git(worktree, *STATUS) == git(project, *STATUS)
        # In a worktree, which no one follows.
        write(worktree, {"src/b.py": "changed\n"})
        monkeypatch.chdir(worktree)
        assert (add(cli, "second") / "src/b.py").read_text() == "changed\n"
        # By the names of its caller, not by its own.
        monkeypatch.chdir(tmp_path / "project")
        elsewhere = cli("worktree", "add", "--path", "../elsewhere", "--json").json
        assert elsewhere["directory"] == str(tmp_path / "elsewhere")
    for name in ("try", "second", "w1"):
        cli("worktree", "rm", name, "--force")


def test_for_a_program_with_other_mounts_it_does_not(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program and its user would not see what the daemon mounts."""
    own = caller.surroundings()
    alone: list[str] = []
    create = adding._create

    def counted(backend: str | None, wanted: dict[str, Any]) -> dict[str, Any]:
        alone.append(wanted["name"])
        return create(backend, wanted)

    monkeypatch.setattr(adding, "_create", counted)
    with daemon(cli.root):
        for name, other in (("a", {"namespaces": []}), ("b", {"umask": 0o77}), ("c", {})):
            monkeypatch.setattr(caller, "surroundings", lambda other=other: {**own, **other})
            assert (add(cli, name) / "src/a.py").exists()
    assert alone == ["a", "b"]
