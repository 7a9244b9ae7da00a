"""Requests, the commands that are opted in, and what the key of an action covers."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from casfs.actions import key
from casfs.errors import Invalid, NotFound
from tests.support.actions import PATH, PROJECT, Bench
from tests.support.helpers import write_tree
from tests.support.new_store import init_store

# -- requests ---------------------------------------------------------------------------------


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
    assert all(key.allows([prefix], shlex.split(command)) for command in allowed)
    assert not any(key.allows([prefix], shlex.split(command)) for command in refused)


@pytest.mark.parametrize(
    ("command", "allowed"),
    [("pytest -q tests", True), ("cargo test", True), ("cargo run", False), ("sh -c make", False)],
)
def test_the_preset_stands_for_its_commands(command: str, allowed: bool) -> None:
    assert key.allows([key.PRESET, "true"], shlex.split(command)) is allowed
    assert not key.allows(["true"], shlex.split(command))


def test_nothing_is_allowed_by_itself() -> None:
    assert not key.allows([], ["make"])
    assert key.allows(["npm test", "make"], ["make"])


@pytest.mark.parametrize("prefix", ["", "  ", "'open"])
def test_a_prefix_that_is_no_command_is_refused(prefix: str) -> None:
    with pytest.raises(Invalid, match=r"actions\.cacheable"):
        key.allows([prefix], ["make"])


def test_where_a_command_runs(bench: Bench, tmp_path: Path) -> None:
    def at(here: Path) -> tuple[Path, tuple[str, ...]]:
        found = bench.request("make", working_directory=here, outputs=["out"])
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
        bench.key("make", working_directory=bench.root / "src"),
        bench.key("make", env=env, names=["CC"]),
        bench.key("make", env=env, names=["CD"]),
        bench.key("make", env={**env, "CC": "clang"}, names=["CC"]),
        bench.key("make", env={"PATH": "/bin"}),
        bench.key("make", outputs=["out"]),
        bench.key("make", outputs=["other"]),
        bench.key("make", timeout=1),
        bench.key("make", timeout=2),
    ]
    here = key.host_platform()
    for part in here:
        monkeypatch.setattr(key, "host_platform", lambda part=part: {**here, part: "other"})
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
    write_tree(bench.root, {"out": {"a": b"1"}, "gen": {"x": b"2"}})
    write_tree(bench.root, {".casfs.0123456789abcdef": {"half": b"restored"}})
    assert bench.key(outputs=["out/a", "gen"]) == before
    (bench.root / "out" / "b").write_text("no output")
    assert bench.key(outputs=["out/a", "gen"]) != before
    (bench.root / "out" / "b").unlink()
    assert bench.key(outputs=["out/a", "gen"]) == before


@pytest.mark.parametrize("name", ["node_modules", "__pycache__", "target", ".venv"])
def test_directories_that_a_checkpoint_leaves_out_are_input(bench: Bench, name: str) -> None:
    evidence = {"package.json": b"", "Cargo.toml": b"", name: {"pyvenv.cfg": b""}}
    write_tree(bench.root, evidence)
    before = bench.key(), bench.key(defaults=True)
    write_tree(bench.root, {name: {"x": b"1"}})
    assert bench.key() != before[0]
    assert bench.key(defaults=True) == before[1]


def test_a_store_in_the_input_is_not_part_of_it(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "project", PROJECT)
    with init_store(root / ".store") as store:
        bench = Bench(store, root)
        assert not bench.sh("echo made").hit
        assert bench.sh("echo made").hit
