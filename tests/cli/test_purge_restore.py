"""What was purged cannot be given back: a restore and an apply neither overwrite nor delete it."""

from __future__ import annotations

from pathlib import Path

from casfs.store.store import Store
from tests.support.cli import lines
from tests.support.engine import Cli
from tests.support.helpers import put_tree, read_tree, write_tree
from tests.support.thread_example import make_thread

FIRST, SECOND, THIRD = b"KEY=first-value", b"KEY=second-val\n", b"KEY=third, in no record"


def recorded(cli: Cli, place: Path, name: str = "key.txt") -> None:
    """Two checkpoints `work` of a directory, of which the file of the second is purged."""
    write_tree(place, {name: FIRST, "f": b"1"})
    cli("checkpoint", "create", "work", place)
    write_tree(place, {name: SECOND, "f": b"2"})
    cli("checkpoint", "create", "work", place)
    cli("gc", "--purge", f"work:{name}", "--force")


def test_the_only_copy_is_moved_aside(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "place"
    recorded(cli, place)
    before = read_tree(place)
    refused = cli.refused("checkpoint", "restore", "work~1", place, code=4)
    assert "key.txt was purged, cannot be recorded, and is moved aside" in refused
    assert (
        "key.txt: changed locally; only --force moves it aside"
        in cli("checkpoint", "restore", "work~1", place, "--dry-run").err
    )
    assert read_tree(place) == before
    forced = cli("checkpoint", "restore", "work~1", place, "--force")
    assert "key.txt: no checkpoint has what was there; moved to key.txt.casfs-aside" in forced.err
    after = {b"key.txt": FIRST, b"f": b"1", b"key.txt.casfs-aside": SECOND}
    assert read_tree(place) == after
    assert lines(cli, "undo", place)
    assert read_tree(place) == {b"f": b"2", b"key.txt.casfs-aside": SECOND}


def test_it_is_moved_to_a_name_that_is_free(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "place"
    recorded(cli, place)
    write_tree(place, {"key.txt.casfs-aside": b"mine"})
    moved = cli("checkpoint", "restore", "work~1", place, "--force", "--json").json["aside"]
    assert moved == [{"path": "key.txt", "movedTo": "key.txt.casfs-aside-2"}]
    assert read_tree(place)[b"key.txt.casfs-aside"] == b"mine"
    assert read_tree(place)[b"key.txt.casfs-aside-2"] == SECOND


def test_a_single_path(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "place"
    recorded(cli, place)
    cli("checkpoint", "restore", "work~1", place, "--", "f")
    assert read_tree(place) == {b"f": b"1", b"key.txt": SECOND}
    assert "key.txt" in cli.refused(
        "checkpoint", "restore", "work~1", place, "--", "key.txt", code=4
    )
    cli("checkpoint", "restore", "work~1", place, "--force", "--", "key.txt")
    assert read_tree(place)[b"key.txt.casfs-aside"] == SECOND


def test_what_is_newer_than_all_records_stays(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "place"
    recorded(cli, place)
    write_tree(place, {"key.txt": THIRD})
    assert "key.txt" in cli.refused("checkpoint", "restore", "work~1", place, code=4)
    cli("checkpoint", "restore", "work", place)  # which has no such file any more
    assert read_tree(place) == {b"f": b"2", b"key.txt": THIRD}
    cli("checkpoint", "restore", "work~1", place, "--force")
    cli("undo", place)
    assert read_tree(place)[b"key.txt"] == THIRD


def test_the_rest_of_a_text_does_not_replace_it(cli: Cli, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "place", {"f": b"x\nhunter2-hunter2\n"})
    cli("checkpoint", "create", "work", place)
    cli("purge", "--text", "--force", stdin=b"hunter2-hunter2")
    assert "f was purged" in cli.refused("checkpoint", "restore", "work", place, code=4)
    cli("checkpoint", "restore", "work", place, "--force")
    assert read_tree(place)[b"f.casfs-aside"] == b"x\nhunter2-hunter2\n"


def test_an_apply_leaves_it(cli: Cli, opened: Store, tmp_path: Path) -> None:
    place = tmp_path / "place"
    recorded(cli, place)
    thread = make_thread(opened)
    thread.step("planner", "first", workspace=put_tree(opened, {"f": b"2"}))
    made = put_tree(opened, {"f": b"3", "key.txt": b"of the agent"})
    thread.step("planner", "made", workspace=made)
    shown = cli("thread", "apply", f"{thread.id}@1..2", place, code=1).out.decode()
    assert "conflict: key.txt: its content here was purged" in shown
    assert read_tree(place) == {b"f": b"3", b"key.txt": SECOND}


def test_a_file_that_is_there_is_not_deleted_for_status(cli: Cli, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "place", {"d": {"f": b"x\nhunter2-hunter2\n"}, "g": FIRST})
    cli("checkpoint", "create", "work", place)
    cli("purge", "--text", "--force", stdin=b"hunter2-hunter2")
    cli("purge", "work:g", "--force")
    status = cli("status", place)
    assert ("no changes" in status.text, status.err) == (True, "")
    write_tree(place, {"g": b"new"})
    assert lines(cli, "status", place)[1:] == ["A g"]
    cli("checkpoint", "create", "work", place)
    write_tree(place, {"g": FIRST})
    status = cli("status", place)
    assert "no changes" in status.text
    assert "g: its content was purged; not compared" in status.err
    (place / "d" / "f").unlink()
    assert "D d/f" in lines(cli, "status", place, "--against", "work~1")


def test_a_workspace_of_an_old_checkpoint_has_no_changes(cli: Cli, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "place", {"d": {"f": b"x\nhunter2-hunter2\n"}, "g": FIRST})
    cli("checkpoint", "create", "work", place)
    cli("purge", "--text", "--force", stdin=b"hunter2-hunter2")
    cli("purge", "work:g", "--force")
    cli("workspace", "open", "work", tmp_path / "own", "--backend", "copy")
    cli("workspace", "close", tmp_path / "own")
    cli("workspace", "open", "work", tmp_path / "own", "--backend", "copy")
    write_tree(tmp_path / "own", {"new": b"1"})
    assert "has changes" in cli.refused("workspace", "close", tmp_path / "own", code=4)
