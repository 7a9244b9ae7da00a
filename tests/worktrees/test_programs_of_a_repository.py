"""Programs that a repository names, as an agent can write it into the shared configuration: none of
them runs by a command of ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.engine import Cli
from tests.worktrees.conftest import git, make_project, write
from tests.worktrees.test_worktree import add

HOOKS = (
    *("applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout"),
    *("post-commit", "post-index-change", "post-merge", "post-rewrite", "pre-commit", "pre-push"),
    *("pre-rebase", "prepare-commit-msg", "reference-transaction", "sendemail-validate"),
)
SETTINGS = (
    *("core.pager", "core.editor", "core.sshCommand", "core.askPass", "core.gitProxy"),
    *("core.alternateRefsCommand", "diff.external", "diff.planted.command"),
    *("diff.planted.textconv", "merge.planted.driver", "gpg.program", "gpg.ssh.program"),
    *("credential.helper", "sequence.editor", "interactive.diffFilter", "pager.status"),
    *("filter.planted.clean", "filter.planted.smudge", "filter.planted.process"),
    *("filter.a=b.clean", "filter.a=b.smudge", "filter.A.B.clean", "filter.A.B.smudge"),
    *("uploadpack.packObjectsHook", "trailer.planted.command", "browser.planted.cmd"),
)
ALIASES = ("status", "diff", "worktree", "switch", "branch", "config")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Leaves its name where it ran."""
    file = tmp_path / "planted"
    file.write_text(f'#!/bin/sh\necho "$0 $*" >> {tmp_path}/ran\ncat\n')
    file.chmod(0o755)
    return file


def plant(repository: Path, program: Path) -> None:
    config = repository / "planted.config"
    for setting in SETTINGS:
        section, _, name = setting.partition(".")
        subsection, _, key = name.rpartition(".")
        title = f'[{section} "{subsection}"]' if subsection else f"[{section}]"
        with config.open("a") as file:
            file.write(f"{title}\n\t{key} = {program}\n")
    git(repository, "config", "include.path", str(config))
    for alias in ALIASES:
        git(repository, "config", f"alias.{alias}", f"!{program}")
    git(repository, "config", "core.fsmonitor", str(program))
    git(repository, "config", "commit.gpgSign", "true")
    git(repository, "config", "filter.planted.required", "true")
    hooks = repository / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in HOOKS:
        (hooks / name).write_bytes(program.read_bytes())
        (hooks / name).chmod(0o755)


def test_none_runs(
    cli: Cli, project: Path, tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = "src/a.py filter=planted diff=planted\nsrc/b.py filter=a=b\n*.json filter=A.B\n"
    write(project, {".gitattributes": attributes})
    git(project, "add", ".gitattributes")
    git(project, "commit", "-qm", "attributes")
    git(project, "branch", "other")
    plant(project, program)
    for path in project.rglob("*.*"):  # so that git reads their content
        os.utime(path)
    for options in ((), ("--branch", "other")):
        worktree = add(cli, "try", *options)
        cli("worktree", "list")
        write(worktree, {"src/a.py": "changed\n", "new.py": "new\n", "package.json": "{ }"})
        cli("worktree", "list", "--json")
        cli("worktree", "rm", "try", code=4)
        cli("worktree", "apply", "try")
        cli("undo")
        cli("worktree", "rm", "try", "--force")
    add(cli, "try")
    cli("worktree", "prune")
    cli("checkpoint", "create", "work", ".")
    cli("status", ".")
    cli("diff", "work", ".")
    cli("checkpoint", "restore", "work", ".", "--force")
    cli("attach", "--list")
    git(project, "config", "extensions.partialClone", "origin")
    git(project, "config", "remote.origin.promisor", "true")
    git(project, "config", "remote.origin.url", str(tmp_path))
    git(project, "config", "remote.origin.uploadpack", str(program))
    (project / ".git/refs/heads/absent").write_text("1" * 40 + "\n")
    cli("worktree", "add", "absent", "--branch", "absent", code=4)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    git(project, "status")  # they would
    assert (tmp_path / "ran").exists()


def test_filters_of_a_submodule_do_not_run(
    cli: Cli, project: Path, tmp_path: Path, program: Path
) -> None:
    inner = make_project(tmp_path / "inner")
    local = ("-c", "protocol.file.allow=always", "submodule", "--quiet")
    git(project, *local, "add", str(inner), "sub")
    git(project, "commit", "-qm", "a submodule")
    worktree = add(cli, "try")
    git(worktree, *local, "update", "--init")
    modules = Path(git(worktree / "sub", "rev-parse", "--absolute-git-dir"))
    git(worktree / "sub", "config", "filter.planted.clean", str(program))
    (modules / "info").mkdir(exist_ok=True)
    (modules / "info/attributes").write_text("* filter=planted\n")
    for path in (worktree / "sub").rglob("*.*"):
        path.touch()
    cli("worktree", "rm", "try")
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_filters_of_a_person_run(cli: Cli, project: Path, tmp_path: Path, program: Path) -> None:
    (Path.home() / ".gitconfig").write_text(
        f'[filter "mine"]\n\tclean = "tr a-z A-Z; : {program}"\n\tsmudge = "tr A-Z a-z"\n'
    )
    write(project, {".gitattributes": "*.up filter=mine\n", "x.up": "text\n"})
    git(project, "add", ".")
    git(project, "commit", "-qm", "filtered")
    assert git(project, "show", "HEAD:x.up") == "TEXT"
    worktree = add(cli, "try")
    (worktree / "x.up").touch()
    cli("worktree", "rm", "try")
