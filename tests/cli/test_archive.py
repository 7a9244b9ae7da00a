"""casfs export and casfs import."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from casfs.backend.derived import repairable
from casfs.store.store import Store
from tests.support.cli import ID, lines, value
from tests.support.engine import Cli
from tests.support.helpers import ABSENT, LARGE, blobs, set_head
from tests.support.maintenance import ended, fill


def test_export_and_import(cli: Cli, there: Cli, opened: Store, tmp_path: Path) -> None:
    thread = fill(opened)
    file = tmp_path / "x.tar.zst"
    (line,) = lines(cli, "export", thread.id, "work", "-o", file)
    assert line.split()[0] == str(file)
    output = lines(there, "import", file)
    assert output[0].split()[1] == "members,"
    assert set(output[1:]) == {f"imported {name}" for name in ("note", thread.id)} | {
        line for line in output if line.startswith("imported work@")
    }
    again = value(there, "import", file)
    assert (again["newBytes"], again["heads"]) == (0, [])
    assert lines(there, "thread", "list") == lines(cli, "thread", "list")
    assert lines(there, "checkpoint", "list") == lines(cli, "checkpoint", "list")
    found = value(cli, "export", "work", "-o", tmp_path / "y.tar")
    assert found["file"] == str(tmp_path / "y.tar")
    assert found["members"] == len(names(tmp_path / "y.tar")) - 2
    assert not list(tmp_path.glob(".*"))


def test_export_replaces_a_file(cli: Cli, opened: Store, tmp_path: Path) -> None:
    hash = opened.put(b"x").hash
    (tmp_path / "x.tar").write_bytes(b"old")
    cli("export", hash, "-o", tmp_path / "x.tar")
    assert tarfile.is_tarfile(tmp_path / "x.tar")


def names(file: Path) -> list[str]:
    with tarfile.open(file) as tar:
        return tar.getnames()


def test_export_to_stdout_is_the_file_alone(cli: Cli, opened: Store, tmp_path: Path) -> None:
    hash = opened.put(LARGE).hash
    cli("export", hash, "-o", tmp_path / "x.tar")
    out = cli("export", hash, "-o", "-").out
    assert out == (tmp_path / "x.tar").read_bytes()
    assert cli("export", hash, "-o", "-", "--json").out == out
    assert f"blobs/{hash}" in names(tmp_path / "x.tar")


def test_an_incremental_export(cli: Cli, there: Cli, opened: Store, tmp_path: Path) -> None:
    thread = fill(opened)
    cli("export", thread.steps[0], "-o", tmp_path / "1.tar")
    there("import", tmp_path / "1.tar")
    with Store.open(there.root) as store:
        had = blobs(store)
    (tmp_path / "have").write_text("\n".join(sorted(had)) + "\n")
    found = value(cli, "export", thread.id, "-o", tmp_path / "2.tar", "--have", tmp_path / "have")
    assert found["skipped"] > 0
    same = cli("export", thread.id, "-o", "-", "--have", "-", stdin="\n".join(had).encode())
    assert same.out == (tmp_path / "2.tar").read_bytes()
    assert thread.name in value(there, "import", tmp_path / "2.tar")["heads"]


def test_export_of_what_is_not(cli: Cli, opened: Store, tmp_path: Path) -> None:
    fill(opened)
    out = tmp_path / "x.tar"
    for root in (ABSENT, "nothing", "work@2019", ""):
        cli.refused("export", root, "-o", out, code=3)
    set_head(opened, "workflows/work", opened.registry.head("note").hash)
    assert "ambiguous" in cli.refused("export", "work", "-o", out, code=4)
    cli.refused("export", "-o", out, code=2)
    cli.refused("export", "work", code=2)
    (tmp_path / "have").write_text("not hashes")
    cli.refused("export", ID, "-o", out, "--have", tmp_path / "have", code=4)
    cli.refused("export", ID, "-o", out, "--have", tmp_path / "nowhere", code=3)
    assert not out.exists()


def test_a_running_thread_is_refused(cli: Cli, opened: Store, tmp_path: Path) -> None:
    from tests.support.thread_example import make_thread

    make_thread(opened).step("planner", "one")
    assert "running" in cli.refused("export", ID, "-o", tmp_path / "x.tar", code=4)
    assert not (tmp_path / "x.tar").exists()


def test_export_to_where_nothing_can_be_written(cli: Cli, opened: Store, tmp_path: Path) -> None:
    hash = opened.put(LARGE).hash
    (tmp_path / "file").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    for place in ("nowhere/x.tar", "file/x.tar", "x" * 300):
        output = cli.refused("export", hash, "-o", tmp_path / place, code=1)
        assert output.startswith(f"casfs: cannot write {tmp_path / place}: ")
    folder = tmp_path / "store"
    cli.refused("export", hash, "-o", folder, code=1)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_export_that_fails_leaves_nothing(cli: Cli, opened: Store, tmp_path: Path) -> None:
    thread = fill(opened)
    repairable(opened.blobs).quarantine(thread.steps[1])
    (tmp_path / "x.tar").write_bytes(b"old")
    output = cli.refused("export", thread.id, "-o", tmp_path / "x.tar", code=3)
    assert thread.steps[1] in output
    assert (tmp_path / "x.tar").read_bytes() == b"old"
    cli.refused("export", thread.id, "-o", tmp_path / "x.tar.zst", code=3)
    assert not list(tmp_path.glob(".*")) + list(tmp_path.glob("*.zst"))


@pytest.mark.parametrize("name", ["x.tar", "x.tar.zst"])
def test_an_export_that_fails_says_so_in_one_line(
    cli: Cli, opened: Store, tmp_path: Path, name: str
) -> None:
    """In a process of its own: what Python says at its end counts too."""
    thread = fill(opened)
    repairable(opened.blobs).quarantine(thread.start)
    argv = [
        sys.executable,
        "-m",
        "casfs",
        "--store",
        str(cli.root),
        "export",
        ID,
        "-o",
        str(tmp_path / name),
    ]
    answer = subprocess.run(argv, capture_output=True, text=True)
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (3, "", 1)


def test_an_export_onto_a_full_disk(cli: Cli, opened: Store) -> None:
    hash = opened.put(LARGE * 9).hash
    with Path("/dev/full").open("wb") as full:
        argv = [sys.executable, "-m", "casfs", "--store", str(cli.root), "export", hash, "-o", "-"]
        answer = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (answer.returncode, answer.stderr.count("\n")) == (1, 1)


def test_import_of_what_is_none(cli: Cli, there: Cli, opened: Store, tmp_path: Path) -> None:
    there.refused("import", tmp_path / "nowhere", code=3)
    there.refused("import", tmp_path, code=1)
    there.refused("import", code=2)
    (tmp_path / "x").write_bytes(b"no tar at all")
    there.refused("import", tmp_path / "x", code=1)
    fill(opened)
    cli("export", ID, "-o", tmp_path / "x.tar")
    data = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[: len(data) // 2])
    assert "cut.tar" in there.refused("import", tmp_path / "cut.tar", code=1)
    with Store.open(there.root) as store:
        ended(store, "something else")
    assert "nothing was imported" in there.refused("import", tmp_path / "x.tar", code=4)
