"""The action cache: when a result may be cached, and what a hit restores."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from casfs.actions import cache as actions
from casfs.actions import outputs
from casfs.actions.runner import Outcome
from casfs.backend.derived import total_stored
from casfs.errors import Failed, NotFound, Refused
from casfs.maintenance import gc
from casfs.store.store import Store
from casfs.system import syscalls
from tests.support.actions import PATH, Bench
from tests.support.engine import alive
from tests.support.helpers import Link, Program, read_tree, write_tree
from tests.support.maintenance import age


def test_a_hit_replays_what_the_run_left_behind(bench: Bench) -> None:
    script = "echo out; echo err >&2; mkdir -p gen/deep; cp src/a.py gen/deep/; ln -s deep gen/l; \
        cp src/b.py single; chmod +x single; echo run >> ../runs"
    want = {b"deep": {b"a.py": b"a\n"}, b"l": Link(b"deep")}

    first = bench.sh(script, outputs=["gen", "single"])
    assert (first.exit_code, first.hit, bench.logged) == (
        0, False, [f"miss {first.action[:12]}: no earlier run of this command is cached"],
    )  # fmt: skip
    streams = bench.out.getvalue(), bench.err.getvalue()
    assert streams == (b"out\n", b"err\n")
    (bench.root / "single").unlink()
    write_tree(bench.root / "gen", {"stale": b"goes"})
    (bench.root / "gen/deep/a.py").write_text("modified")

    second = bench.sh(script, outputs=["single", "gen"])
    assert (second.exit_code, second.hit, second.result) == (0, True, first.result)
    assert bench.logged == [f"hit {first.action[:12]}: {second.saved_ms / 1000:.2f} s saved"]
    assert (bench.out.getvalue(), bench.err.getvalue()) == streams
    found = read_tree(bench.root)
    assert found[b"gen"] == want
    assert found[b"single"] == Program(b"b\n")
    assert set(found) == {b"src", b"empty", b"gen", b"single"}, "nothing of ours is left"
    assert (bench.root.parent / "runs").read_text() == "run\n"


def test_an_output_may_change_its_kind(bench: Bench) -> None:
    bench.sh("mkdir -p d/out; echo 1 > d/out/file; echo 2 > f", outputs=["d/out", "f"])
    for damage in ({"d": {"out": b"a file"}}, {}, {"d": {}}, {"d": {"out": Link(b"/etc")}}):
        subprocess.run(["rm", "-rf", bench.root / "d", bench.root / "f"], check=True)
        write_tree(bench.root, {**damage, "f": {"full": {"of": b"things"}}})
        assert bench.sh(
            "mkdir -p d/out; echo 1 > d/out/file; echo 2 > f", outputs=["d/out", "f"]
        ).hit
        assert read_tree(bench.root / "d") == {b"out": {b"file": b"1\n"}}
        assert (bench.root / "f").read_text() == "2\n"


def test_where_the_file_system_cannot_exchange(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sh("echo 1 > f", outputs=["f"])
    (bench.root / "f").write_text("2")
    monkeypatch.setattr(syscalls, "RENAME_EXCHANGE", 1 << 20)  # flags that no kernel knows: EINVAL
    assert bench.sh("echo 1 > f", outputs=["f"]).hit
    assert (bench.root / "f").read_text() == "1\n"


def test_what_cannot_be_put_back_is_run_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sh("echo 1 > f", outputs=["f"])

    def refuse(source: int, target: int, name: bytes) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(outputs, "_swap", refuse)
    (bench.root / "f").write_text("2")
    done = bench.sh("echo 1 > f", outputs=["f"])
    assert (done.hit, done.exit_code) == (False, 0)
    assert "cannot be replayed: cannot restore" in bench.logged[0]
    assert (bench.root / "f").read_text() == "1\n"
    assert set(read_tree(bench.root)) == {b"src", b"empty", b"f"}


def test_nothing_is_written_through_a_symlink(bench: Bench, tmp_path: Path) -> None:
    bench.sh("mkdir -p d; echo 1 > d/f", outputs=["d/f"])
    victim = write_tree(tmp_path / "victim", {"f": b"precious"})
    (bench.root / "d/f").unlink()
    (bench.root / "d").rmdir()
    (bench.root / "d").symlink_to(victim)
    with pytest.raises(Refused, match="d is not a directory"):
        bench.sh("mkdir -p d; echo 1 > d/f", outputs=["d/f"])
    assert read_tree(victim) == {b"f": b"precious"}


def test_the_command_sees_what_was_named_and_nothing_else(bench: Bench) -> None:
    env = {"PATH": PATH, "SECRET": "x", "CC": "gcc"}
    bench.run("env", env=env, names=["CC", "UNSET"])
    seen = dict(line.split("=", 1) for line in bench.out.getvalue().decode().splitlines())
    assert seen == {"PATH": PATH, "CC": "gcc"}
    bench.run("cat", cached=False)
    assert bench.out.getvalue() == b""


def test_what_is_not_opted_in_leaves_no_trace(bench: Bench) -> None:
    before = sum(1 for _ in bench.store.blobs.iterate())
    for _ in range(2):
        done = bench.sh("echo said; echo run >> ../runs", cached=False)
        assert done == Outcome(0, duration_ms=done.duration_ms)
    assert (bench.root.parent / "runs").read_text() == "run\nrun\n"
    assert sum(1 for _ in bench.store.blobs.iterate()) == before
    assert bench.logged == []


def test_only_exit_code_0_is_cached(bench: Bench) -> None:
    for _ in range(2):
        done = bench.sh("echo run >> ../runs; exit 3")
        assert (done.exit_code, done.hit, done.result) == (3, False, None)
    assert (bench.root.parent / "runs").read_text() == "run\nrun\n"
    assert bench.sh("kill -9 $$").exit_code == -9
    assert actions.list_entries(bench.store) == []


def test_an_output_that_is_not_made_is_not_cached(bench: Bench) -> None:
    assert bench.sh("touch one", outputs=["one", "two/three"]).result is None
    assert bench.logged[-1] == "not cached: it did not produce the output two/three"


def test_an_input_that_changed_meanwhile_is_not_cached(bench: Bench) -> None:
    done = bench.sh("echo edited > src/a.py")
    assert done.result is None
    assert bench.logged[-1] == "not cached: the input changed while it ran: src/a.py"
    assert bench.sh("echo edited > src/a.py").result is not None, "now it leaves it as it was"


def test_a_run_that_cannot_be_recorded_has_still_been_run(bench: Bench) -> None:
    done = bench.sh("echo made; mkdir -p " + "d/" * 300, outputs=["d"])
    assert (done.exit_code, done.result) == (0, None)
    assert bench.out.getvalue() == b"made\n"
    assert bench.logged[-1].startswith("not cached: ")


def test_a_program_that_is_not_there(bench: Bench) -> None:
    for cached in (True, False):
        with pytest.raises(NotFound, match="no program 'nonesuch' on the PATH"):
            bench.run("nonesuch", cached=cached)
    (bench.root / "file").write_text("no program")
    (bench.root / "file").chmod(0o755)
    with pytest.raises(Failed, match=r"cannot run '\./file'"):
        bench.run("./file")


def test_too_late_ends_the_whole_group(bench: Bench) -> None:
    script = "sleep 1000 & echo $! > ../pid; echo begun; wait"
    done = bench.sh(script, timeout=1)
    assert done.timed_out
    assert done.result is None
    assert bench.out.getvalue() == b"begun\n"
    assert not alive(int((bench.root.parent / "pid").read_text()))


def test_output_without_end_does_not_outrun_the_timeout(bench: Bench) -> None:
    assert bench.run("yes", timeout=0.3).timed_out


def test_what_a_command_leaves_running_is_ended(bench: Bench) -> None:
    assert bench.sh("sleep 1000 & echo $! > ../pid; echo done").exit_code == 0
    assert bench.out.getvalue() == b"done\n"
    assert not alive(int((bench.root.parent / "pid").read_text()))


def test_a_result_that_is_damaged_or_gone_is_a_miss(bench: Bench) -> None:
    big = "head -c 5000 /dev/zero > out"
    first = bench.sh(big, outputs=["out"])
    objects = [p for p in (bench.store.root / "objects").rglob("*") if p.is_file()]
    assert len(objects) == 1
    objects[0].chmod(0o600)
    objects[0].write_bytes(b"x" * 5000)
    (bench.root / "out").write_text("mine")
    with Store.open(bench.store.root) as store:
        bench.store = store
        again = bench.sh(big, outputs=["out"])
    assert not again.hit
    assert bench.logged[0].startswith(f"the result of {first.action[:12]} cannot be replayed: ")
    assert (bench.root / "out").read_bytes() == bytes(5000)


def test_what_gc_evicted_is_a_miss(bench: Bench) -> None:
    one = bench.sh("echo one; head -c 9000 /dev/zero > out", outputs=["out"])
    two = bench.sh("echo two; head -c 9000 /dev/urandom > out", outputs=["out"])
    assert bench.sh("echo one; head -c 9000 /dev/zero > out", outputs=["out"]).hit
    age(bench.store)
    total = total_stored(bench.store.blobs)
    done = gc.collect(bench.store, grace=0, limits=gc.Limits(max_bytes=total.bytes - 1))
    assert done.evicted == [f"actions/{two.action}"], "the one that was hit is the younger"
    assert bench.sh("echo one; head -c 9000 /dev/zero > out", outputs=["out"]).hit
    age(bench.store)
    gc.collect(bench.store, grace=0, limits=gc.Limits(max_bytes=1))
    assert actions.list_entries(bench.store) == []
    assert not bench.sh("echo one; head -c 9000 /dev/zero > out", outputs=["out"]).hit
    assert one.action is not None


def test_a_store_in_memory_caches_too(store: Store, bench: Bench) -> None:
    bench.store = store
    assert not bench.sh("echo x").hit
    assert bench.sh("echo x").hit
