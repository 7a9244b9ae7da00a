"""`watch` and `mark` with a daemon, also a restarted one; `checkpoint create` of a watched one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engine import Cli, daemon, spawn, until


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project/src").mkdir(parents=True)
    (tmp_path / "project/src/a").write_text("one\n")
    return tmp_path / "project"


def test_a_watched_directory(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("watch", "--list").text == ""
    with daemon(cli.root):
        made = cli("watch", project, "--settle", "1s", "--keep-last", "5", "--json").json
        assert (made["directory"], made["name"]) == (str(project), "project")
        assert made["keep"] == {"last": 5}
        until(lambda: cli("watch", "--list", "--json").json[0]["checkpoint"])
        (first,) = cli("checkpoint", "list", "project", "--json").json
        (project / "src/a").write_text("two\n")
        found = until(lambda: cli("checkpoint", "list", "project", "--json").json[:-1])
        assert len(found) == 1
        assert found[0]["id"] > first["id"]
        (one,) = cli("watch", "--list", "--json").json
        assert one["error"] is None
        assert one["checkpoint"].startswith("project@")
        assert cli("status", "--json").json["watches"] == [one]
        assert f"watch   {project} as project@" in cli("status").text
        cli("watch", project, "--settle", "1h")  # so that only what is asked for is recorded
        assert cli("checkpoint", "create", "project", project, "--json").json["skipped"] is False
        (project / "src/b").write_text("new\n")
        value = cli("checkpoint", "create", "project", project, "-m", "asked", "--json").json
        assert (value["stats"]["added"], value["message"]) == (1, "asked")
        assert value["read"] <= 2  # of src, the new file and one that was written a moment ago
        monkeypatch.chdir(project / "src")
        (project / "src/b").write_text("changed\n")
        shown = cli("mark", "rename \x1b[31mall").text
        assert shown == 'project: the next checkpoint is "rename \\x1b[31mall"\n'
    assert cli("mark", "later", code=5).err.startswith("casfs: no daemon runs")
    (project / "src/c").write_text("while no daemon ran\n")
    with daemon(cli.root):
        value = cli("checkpoint", "create", "project", project, "--json").json
        assert value["stats"]["added"] == 1
        assert (
            cli("watch", project, "--stop").text == f"project {project} is not watched any more\n"
        )
        assert cli("watch", "--list", "--json").json == []
        assert "is not watched" in cli.refused("watch", project, "--stop", code=3)
        assert "in no watched directory" in cli.refused("mark", "x", code=3)
    value = cli("checkpoint", "create", "project", project, "--skip-if-unchanged", "--json").json
    assert value["skipped"] is True


def test_what_is_purged_is_left_out_where_the_daemon_watches(cli: Cli, project: Path) -> None:
    (project / "src/b").write_text("two\n")
    with daemon(cli.root):
        cli("watch", project, "--settle", "1h")
        cli("checkpoint", "create", "project", project)
        cli("purge", "project:src/a", "--force")
        for _ in range(2):
            said = cli("checkpoint", "create", "project", project)
            assert "src/a: purged" in said.err
            assert cli("ls", "project:src").text.split() == ["b"]


def test_what_is_not_watched(cli: Cli, project: Path) -> None:
    with daemon(cli.root):
        cli.refused("watch", project / "none", code=3)
        cli.refused("watch", Path.home(), code=4)
        cli.refused("watch", project, "--name", "a/b", code=4)
        cli.refused("watch", code=2)
        cli.refused("watch", project, "--list", code=2)


def test_the_daemon_is_started(cli: Cli, project: Path) -> None:
    done = spawn("--store", cli.root, "watch", project)
    try:
        assert done.stdout == f"project {project} is watched\n"
    finally:
        cli("daemon", "stop")


@pytest.mark.parametrize("directory", ["/proc", "/proc/self", "/sys", "/sys/fs/cgroup", "/dev"])
def test_directories_of_the_kernel_are_refused(cli: Cli, directory: str) -> None:
    for verb in (["watch"], ["checkpoint", "create", "x"], ["tree", "build"]):
        assert "files of the kernel" in cli.refused(*verb, directory, code=4)


def test_the_store_is_not_watched(cli: Cli) -> None:
    for directory in (cli.root, cli.root / "objects"):
        assert "is the store itself" in cli.refused("watch", directory, code=4)
