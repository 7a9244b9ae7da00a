"""The project of a directory: a repository with its work trees, or the directory itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from casfs.directories import projects
from casfs.directories.projects import MAX_FIELDS_BYTES, Project, project_of


def git(directory: Path, *arguments: str | Path) -> None:
    owner = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    subprocess.run(["git", "-C", directory, *owner, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "app"
    (path / "src").mkdir(parents=True)
    git(path, "init", "-q")
    git(path, "commit", "-q", "--allow-empty", "-m", "first")
    return path


def test_a_repository_is_one_project_with_its_work_trees(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", tmp_path / "try")
    (tmp_path / "try/inner").mkdir()
    assert project_of(repository / "src") == Project(repository)
    assert project_of(tmp_path / "try/inner") == Project(repository, tmp_path / "try")
    assert project_of(tmp_path / "try").name == "app (try)"


def test_of_a_bare_repository(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", "--bare", repository, tmp_path / "hub.git")
    git(tmp_path / "hub.git", "worktree", "add", "-q", tmp_path / "try")
    assert project_of(tmp_path / "try") == Project(tmp_path / "hub.git", tmp_path / "try")


def test_a_file_that_only_says_so_makes_no_work_tree(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "-q", tmp_path / "try")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / ".git").write_bytes((tmp_path / "try/.git").read_bytes())
    assert project_of(copy) == Project(copy)


def test_a_submodule_is_a_project_of_its_own(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", tmp_path / "lib")
    git(tmp_path / "lib", "commit", "-q", "--allow-empty", "-m", "first")
    allowed = ("-c", "protocol.file.allow=always")
    git(repository, *allowed, "submodule", "add", "-q", tmp_path / "lib", "lib")
    assert project_of(repository / "lib") == Project(repository / "lib")
    git(repository / "lib", "worktree", "add", "-q", tmp_path / "of-lib")
    assert project_of(tmp_path / "of-lib") == Project(tmp_path / "of-lib")


def test_what_a_path_names(repository: Path) -> None:
    assert projects.named(str(repository / "src")) == [repository / "src", repository]
    assert projects.named(str(repository / "gone")) == [repository / "gone"]


def test_without_a_repository_it_is_the_directory(tmp_path: Path) -> None:
    assert project_of(tmp_path) == Project(tmp_path)
    assert project_of(tmp_path / "gone") == Project(tmp_path / "gone")
    (tmp_path / ".git").write_bytes(b"gitdir: \0\xff\n")
    assert project_of(tmp_path) == Project(tmp_path)


def test_the_fields_of_a_record_come_back() -> None:
    for project in (Project(Path("/a")), Project(Path("/a"), Path("/b/c"))):
        assert Project.of_fields(project.fields) == project
        assert projects.json_fields(project).keys() == {"project", "worktree"}
    long = Path("/" + "x" * MAX_FIELDS_BYTES)
    assert Project(Path("/a"), long).fields == {"project": "/a"}
    assert Project(long).fields == {}
    assert Project(Path("/\udcff")).fields == {}
