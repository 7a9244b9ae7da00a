"""Explanations of cache misses."""

from __future__ import annotations

from typing import Any

import pytest

from casfs.actions import key
from casfs.backend.derived import repairable
from tests.support.actions import PATH, Bench


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
    where = {**given, "working_directory": bench.root / "src", "outputs": ["../out"]}
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
    here = key.host_platform()
    monkeypatch.setattr(key, "host_platform", lambda: {**here, "libc": "musl 1.2"})
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
