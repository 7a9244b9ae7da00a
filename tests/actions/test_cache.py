"""The action cache: what the key covers, when a result may be kept, and what a hit gives back."""

from __future__ import annotations

import errno
import io
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from casfs.actions import cache as actions
from casfs.actions import nearest, outputs, runner
from casfs.actions.cache import Action, Request
from casfs.actions.runner import Outcome, Streams
from casfs.backend.derived import repairable, total_stored
from casfs.errors import Failed, Invalid, NotFound, Refused
from casfs.maintenance import gc
from casfs.store import Store
from casfs.system import processes, syscalls
from casfs.system.processes import Identity
from tests.support.engine import alive, kill, pids, until
from tests.support.helpers import Link, Program, read_tree, write_tree
from tests.support.maintenance import age

PATH = os.environ.get("PATH", os.defpath)
PROJECT = {"src": {"a.py": b"a\n", "b.py": b"b\n"}, "empty": {}}


@dataclass
class Bench:
    """A project and a store; `run` caches unless it is told otherwise."""

    store: Store
    root: Path
    told: list[str] = field(default_factory=list)
    out: io.BytesIO = field(default_factory=io.BytesIO)
    err: io.BytesIO = field(default_factory=io.BytesIO)

    def request(self, *argv: str, **more: Any) -> Request:
        given = {"directory": self.root, "here": self.root, "env": {"PATH": PATH}, **more}
        return actions.request(argv, **given)

    def run(self, *argv: str, cached: bool = True, **more: Any) -> Outcome:
        self.told, self.out, self.err = [], io.BytesIO(), io.BytesIO()
        streams = Streams(self.out, self.err, self.told.append)
        return runner.run(self.store, self.request(*argv, **more), streams, cached=cached)

    def sh(self, script: str, **more: Any) -> Outcome:
        return self.run("sh", "-c", script, **more)

    def key(self, *argv: str, **more: Any) -> str:
        return self.identify(*argv, **more).hash

    def identify(self, *argv: str, **more: Any) -> Action:
        return actions.identify(self.store, self.request(*(argv or ("make",)), **more))

    def why(self, *argv: str, **more: Any) -> str:
        return nearest.explain(self.store, self.identify(*argv, **more))


@pytest.fixture
def bench(disk_store: Store, tmp_path: Path) -> Bench:
    return Bench(disk_store, write_tree(tmp_path / "project", PROJECT))


# -- what is asked for ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "allowed", "refused"),
    [
        ("make", ["make", "make -j2 all"], ["makefoo", "sh -c make", "/usr/bin/make", "cmake"]),
        ("cargo build", ["cargo build", "cargo build --release"], ["cargo", "cargo b build"]),
        ("'my tool' x", ["'my tool' x y"], ["my tool x", "'my tool x'"]),
    ],
)
def test_a_prefix_is_compared_word_by_word(
    prefix: str, allowed: list[str], refused: list[str]
) -> None:
    assert all(actions.allows([prefix], shlex.split(command)) for command in allowed)
    assert not any(actions.allows([prefix], shlex.split(command)) for command in refused)


def test_nothing_is_allowed_by_itself() -> None:
    assert not actions.allows([], ["make"])
    assert actions.allows(["npm test", "make"], ["make"])


@pytest.mark.parametrize("prefix", ["", "  ", "'open"])
def test_a_prefix_that_is_no_command_is_refused(prefix: str) -> None:
    with pytest.raises(Invalid, match=r"actions\.cacheable"):
        actions.allows([prefix], ["make"])


def test_where_a_command_runs(bench: Bench, tmp_path: Path) -> None:
    def at(here: Path) -> tuple[Path, tuple[str, ...]]:
        found = bench.request("make", here=here, outputs=["out"])
        return found.directory, found.outputs

    assert at(bench.root) == (bench.root, ("out",))
    assert at(bench.root / "src") == (bench.root / "src", ("src/out",))
    assert at(tmp_path) == (bench.root, ("out",)), "from outside it runs in the input directory"


def test_outputs_are_inside_the_input_and_none_below_another(bench: Bench) -> None:
    given = ["b", "a/x/../y", "a", "b/", str(bench.root / "c")]
    assert bench.request("make", outputs=given).outputs == ("a", "b", "c")
    for bad in ("", ".", "..", "../x", "/etc/passwd", "src/.."):
        with pytest.raises(Invalid, match="not inside the input directory"):
            bench.request("make", outputs=[bad])


def test_a_request_that_makes_no_sense(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no directory"):
        bench.request("make", directory=tmp_path / "none")
    for timeout in (0, -1, float("nan"), float("inf")):
        with pytest.raises(Invalid, match="invalid timeout"):
            bench.request("make", timeout=timeout)
    with pytest.raises(Invalid, match="no command"):
        bench.request()
    with pytest.raises(Invalid, match="surrogate"):
        bench.identify("make", "\udcff")


# -- the key ----------------------------------------------------------------------------------


def test_the_same_action_has_the_same_key(bench: Bench) -> None:
    assert bench.key() == bench.key()
    assert bench.key(outputs=["a", "b"]) == bench.key(outputs=["b", "a", "b"])
    env = {"PATH": PATH, "A": "1", "B": "2"}
    assert bench.key(env=env, names=["A", "B"]) == bench.key(env=env, names=["B", "A"])
    assert bench.key(env=env) == bench.key(), "what is not named is not seen"


def test_every_part_is_in_the_key(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"PATH": PATH, "CC": "gcc", "CD": "gcc"}
    keys = [
        bench.key("make"),
        bench.key("make", "all"),
        bench.key("make all"),
        bench.key("make", here=bench.root / "src"),
        bench.key("make", env=env, names=["CC"]),
        bench.key("make", env=env, names=["CD"]),
        bench.key("make", env={**env, "CC": "clang"}, names=["CC"]),
        bench.key("make", env={"PATH": "/bin"}),
        bench.key("make", outputs=["out"]),
        bench.key("make", outputs=["other"]),
        bench.key("make", timeout=1),
        bench.key("make", timeout=2),
    ]
    here = actions.host()
    for part in here:
        monkeypatch.setattr(actions, "host", lambda part=part: {**here, part: "other"})
        keys.append(bench.key("make"))
    assert len(set(keys)) == len(keys)
    assert set(bench.identify().payload) == {
        "argv", "cwd", "env", "inputRoot", "outputs", "platform", "timeoutMs", "step",
    }  # fmt: skip


def test_all_of_the_input_is_in_the_key(bench: Bench) -> None:
    keys = [bench.key()]
    (bench.root / "src" / "b.py").write_text("c\n")
    keys.append(bench.key())
    (bench.root / "src" / "b.py").chmod(0o755)
    keys.append(bench.key())
    (bench.root / "src" / "b.py").rename(bench.root / "src" / "c.py")
    keys.append(bench.key())
    (bench.root / "link").symlink_to("src")
    keys.append(bench.key())
    (bench.root / "empty").rmdir()
    keys.append(bench.key())
    assert len(set(keys)) == len(keys)
    assert len(bench.identify().payload["inputRoot"]) == 64


def test_what_is_not_in_the_key(bench: Bench) -> None:
    before = bench.key(outputs=["out/a", "gen"])
    write_tree(bench.root, {"out": {"a": b"1"}, "gen": {"x": b"2"}, "node_modules": {"m": b""}})
    write_tree(bench.root, {".casfs.0123456789abcdef": {"half": b"restored"}})
    assert bench.key(outputs=["out/a", "gen"]) == before
    (bench.root / "out" / "b").write_text("no output")
    assert bench.key(outputs=["out/a", "gen"]) != before
    (bench.root / "out" / "b").unlink()
    assert bench.key(outputs=["out/a", "gen"], defaults=False) != before


def test_a_store_in_the_input_is_not_part_of_it(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "project", PROJECT)
    with Store.init(root / ".store") as store:
        bench = Bench(store, root)
        assert not bench.sh("echo made").hit
        assert bench.sh("echo made").hit


# -- hits and misses --------------------------------------------------------------------------


def test_a_hit_replays_what_the_run_left_behind(bench: Bench) -> None:
    script = "echo out; echo err >&2; mkdir -p gen/deep; cp src/a.py gen/deep/; ln -s deep gen/l; \
        cp src/b.py single; chmod +x single; echo run >> ../runs"
    want = {b"deep": {b"a.py": b"a\n"}, b"l": Link(b"deep")}

    first = bench.sh(script, outputs=["gen", "single"])
    assert (first.exit_code, first.hit, bench.told) == (
        0, False, [f"miss {first.action[:12]}: no earlier run of this command is cached"],
    )  # fmt: skip
    streams = bench.out.getvalue(), bench.err.getvalue()
    assert streams == (b"out\n", b"err\n")
    (bench.root / "single").unlink()
    write_tree(bench.root / "gen", {"stale": b"goes"})
    (bench.root / "gen/deep/a.py").write_text("modified")

    second = bench.sh(script, outputs=["single", "gen"])
    assert (second.exit_code, second.hit, second.result) == (0, True, first.result)
    assert bench.told == [f"hit {first.action[:12]}: {second.saved_ms / 1000:.2f} s saved"]
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
    assert "cannot be replayed: cannot put back" in bench.told[0]
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
    assert bench.told == []


def test_only_exit_code_0_is_cached(bench: Bench) -> None:
    for _ in range(2):
        done = bench.sh("echo run >> ../runs; exit 3")
        assert (done.exit_code, done.hit, done.result) == (3, False, None)
    assert (bench.root.parent / "runs").read_text() == "run\nrun\n"
    assert bench.sh("kill -9 $$").exit_code == -9
    assert actions.listing(bench.store) == []


def test_an_output_that_is_not_made_is_not_cached(bench: Bench) -> None:
    assert bench.sh("touch one", outputs=["one", "two/three"]).result is None
    assert bench.told[-1] == "not cached: it did not make the output two/three"


def test_an_input_that_changed_meanwhile_is_not_cached(bench: Bench) -> None:
    done = bench.sh("echo edited > src/a.py")
    assert done.result is None
    assert bench.told[-1] == "not cached: the input changed while it ran: src/a.py"
    assert bench.sh("echo edited > src/a.py").result is not None, "now it leaves it as it was"


def test_a_run_that_cannot_be_recorded_has_still_been_run(bench: Bench) -> None:
    done = bench.sh("echo made; mkdir -p " + "d/" * 300, outputs=["d"])
    assert (done.exit_code, done.result) == (0, None)
    assert bench.out.getvalue() == b"made\n"
    assert bench.told[-1].startswith("not cached: ")


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
    assert bench.told[0].startswith(f"the result of {first.action[:12]} cannot be replayed: ")
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
    assert actions.listing(bench.store) == []
    assert not bench.sh("echo one; head -c 9000 /dev/zero > out", outputs=["out"]).hit
    assert one.action is not None


def test_a_store_in_memory_caches_too(store: Store, bench: Bench) -> None:
    bench.store = store
    assert not bench.sh("echo x").hit
    assert bench.sh("echo x").hit


# -- why it is a miss -------------------------------------------------------------------------


def test_a_miss_names_the_part_that_differs(bench: Bench) -> None:
    env = {"PATH": PATH, "CC": "gcc"}
    given: dict[str, Any] = {"env": env, "names": ["CC"], "outputs": ["out"]}
    bench.run("touch", "out", **given)
    assert bench.why("rm", "x") == "no earlier run of this command is cached"
    assert bench.why("touch", "x", **given) == "argv differs: was touch out"
    assert (
        bench.why("touch", "out", **{**given, "env": {**env, "CC": "s3cret"}}) == "env CC differs"
    )
    assert bench.why("touch", "out", **{**given, "names": []}) == "env CC differs"
    assert bench.why("touch", "out", **given, timeout=5) == "timeout differs"
    assert bench.why("touch", "out", **{**given, "outputs": ["x", "out"]}) == (
        "outputs differ: were out"
    )
    where = {**given, "here": bench.root / "src", "outputs": ["../out"]}
    assert bench.why("touch", "out", **where) == "working directory differs: was ."
    (bench.root / "src/a.py").write_text("changed")
    assert bench.why("touch", "out", **given) == "input tree differs: src/a.py"
    for name in "defg":
        (bench.root / "src" / name).touch()
    assert bench.why("touch", "out", **given) == (
        "input tree differs: src/a.py, src/d, src/e and 2 more"
    )
    assert bench.why("touch", "out", **given, timeout=5).endswith("; timeout differs")


def test_the_platform_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run("true")
    here = actions.host()
    monkeypatch.setattr(actions, "host", lambda: {**here, "libc": "musl 1.2"})
    assert bench.why("true") == "platform libc differs"


def test_the_nearest_entry_is_the_one_with_the_fewest_differences(bench: Bench) -> None:
    env = {"PATH": PATH, "A": "1", "B": "1"}
    bench.run("true", env=env, names=["A", "B"])
    (bench.root / "src/a.py").write_text("changed")
    bench.run("true", env={**env, "A": "2"}, names=["A", "B"])
    near = {"env": {**env, "A": "2"}, "names": ["A", "B"]}
    assert bench.why("true", **near, timeout=1) == "timeout differs"
    assert bench.why("true", env={**env, "A": "3"}, names=["A", "B"]) == "env A differs"
    (bench.root / "src/a.py").write_text("a\n")
    assert bench.why("true", env=env, names=["A", "B"], timeout=1) == "timeout differs"


def test_a_damaged_entry_does_not_break_the_explanation(bench: Bench) -> None:
    done = bench.run("true")
    assert done.action is not None
    head = bench.store.heads.get(f"actions/{done.action}")
    assert head is not None
    for name in ("result", "action"):
        repairable(bench.store.blobs).quarantine(head.hash if name == "result" else done.action)
        assert bench.why("true", timeout=1) == "no earlier run of this command is cached"


# -- two at once ------------------------------------------------------------------------------

SCRIPT = """
import sys
from pathlib import Path
from casfs.actions import cache as actions, runner
from casfs.store import Store

store, root, script = sys.argv[1:]
tell = lambda line: print(line, flush=True)
with Store.open(Path(store)) as store:
    request = actions.request(
        ["sh", "-c", script], directory=Path(root), here=Path(root),
        env={"PATH": %r}, outputs=["out"],
    )
    streams = runner.Streams(sys.stderr.buffer, sys.stderr.buffer, tell)
    done = runner.run(store, request, streams, cached=True)
    print("done", done.hit, done.exit_code, flush=True)
"""


@dataclass
class Other:
    """A process that runs an action, and what it told so far."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listener = threading.Thread(target=self._listen)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.said.append(line.rstrip("\n"))

    def has_said(self, beginning: str) -> bool:
        return any(line.startswith(beginning) for line in self.said)


@pytest.fixture
def others(bench: Bench) -> Iterator[Any]:
    started: list[Other] = []

    def start(script: str) -> Other:
        argv = [sys.executable, "-c", SCRIPT % PATH, str(bench.store.root), str(bench.root), script]
        started.append(Other(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        one.listener.join()


def test_two_at_once_run_once(bench: Bench, others: Any) -> None:
    go = bench.root.parent / "go"
    script = f"echo run >> ../runs; until test -e {go}; do sleep 0.02; done; echo 1 > out"
    first = others(script)
    until(lambda: (bench.root.parent / "runs").exists())
    second = others(script)
    until(lambda: second.has_said("waiting for "))
    go.touch()
    until(lambda: first.has_said("done ") and second.has_said("done "))
    assert first.said[-1] == "done False 0"
    assert second.said[-1] == "done True 0"
    assert (bench.root.parent / "runs").read_text() == "run\n"
    assert list((bench.store.root / "locks").iterdir()) == []


def test_a_waiter_runs_what_failed(bench: Bench, others: Any) -> None:
    go = bench.root.parent / "go"
    script = f"echo run >> ../runs; until test -e {go}; do sleep 0.02; done; exit 1"
    first = others(script)
    until(lambda: (bench.root.parent / "runs").exists())
    second = others(script)
    until(lambda: second.has_said("waiting for "))
    go.touch()
    until(lambda: first.has_said("done ") and second.has_said("done "))
    assert first.said[-1] == second.said[-1] == "done False 1"
    assert (bench.root.parent / "runs").read_text() == "run\nrun\n"


def test_when_the_runner_is_killed_the_waiter_runs(bench: Bench, others: Any) -> None:
    go, runs = bench.root.parent / "go", bench.root.parent / "runs"
    script = f"echo $$ >> ../runs; until test -e {go}; do sleep 0.02; done; echo 1 > out"
    first = others(script)
    until(lambda: pids(runs))
    second = others(script)
    until(lambda: second.has_said("waiting for "))
    orphan = pids(runs)[0]
    kill(first.process.pid)
    until(lambda: len(pids(runs)) == 2)
    assert not alive(orphan), "two runs of one action would write the same outputs"
    assert second.has_said(f"ended process {orphan}, ")
    go.touch()
    until(lambda: second.has_said("done "))
    assert second.said[-1] == "done False 0"
    assert (bench.root / "out").read_text() == "1\n"


# -- processes --------------------------------------------------------------------------------


def test_an_identity_is_not_taken_for_another() -> None:
    mine = Identity.of(os.getpid())
    assert Identity.parse(str(mine)) == mine
    assert mine.lives()
    assert not Identity(mine.pid, mine.started + 1).lives()
    assert not processes.end(Identity(mine.pid, mine.started + 1)), "and this test goes on"
    for text in ("", "1", "a b", "1 2 3"):
        assert Identity.parse(text) is None
