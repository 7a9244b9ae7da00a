"""A snapshot with the stat cache is the one without it, whatever comes and goes in between:
content, modes, and the evidence for what is left out."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.scanner import Scanner
from casfs.store.store import Store
from casfs.trees.snapshot import derived, stat_cache, walker
from casfs.trees.snapshot.ignore import IGNORE_FILE, IgnoreRules
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from tests.support import planted

SECRET = planted.settings_file()
PLACES = ("", "p", "p/q", "node_modules", "build", "p/build", "p/node_modules", "cache/in")
FILES = {
    "package.json": b"{}",
    "Makefile": b"",
    ".gitignore": b"build/\n",
    "pyvenv.cfg": b"",
    "CACHEDIR.TAG": derived.CACHE_SIGNATURE,
    "f": b"one",
    "g": b"two",
    ".env": b"",
}
PATHS = [os.path.join(place, name) for place in PLACES for name in FILES]
CHANGES = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(PATHS), st.sampled_from([b"", b"x", SECRET, None])),
    st.tuples(st.just("remove"), st.sampled_from([*PATHS, *PLACES[1:]]), st.none()),
    st.tuples(
        st.just("chmod"),
        st.sampled_from([*PLACES, *(f"{place}/f" for place in PLACES if place)]),
        st.sampled_from([0o600, 0o700, 0o755, 0o775]),
    ),
    st.tuples(st.just("ignore"), st.just(""), st.sampled_from([b"", b"!build/\n", b"q/\n*.json"])),
)
TICKS_S = 0.02  # of the clock of file systems


def apply(root: Path, kind: str, name: str, value: object) -> None:
    path = root / name
    if kind == "ignore":
        kind, path = "write", root / IGNORE_FILE
    if kind == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        assert value is None or isinstance(value, bytes)
        path.write_bytes(FILES.get(path.name, b"") if value is None else value)
    elif not path.exists():
        return
    elif kind == "chmod":
        assert isinstance(value, int)
        path.chmod(value)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def snapshot(store: Store, root: Path, cached: bool) -> tuple[str, SnapshotReport]:
    rules, report = IgnoreRules.of(root), SnapshotReport()
    options = SnapshotOptions(scanner=Scanner())
    cache = stat_cache.load(store, root, rules, options.variant) if cached else None
    with store.batch() as batch:
        found = walker.snapshot(batch, root, rules, report, options=options, cache=cache).node.hash
    if cache is not None:
        cache.save()
    return found, report


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rounds=st.lists(st.lists(CHANGES, max_size=6), min_size=2, max_size=5))
def test_incremental_is_full(
    disk_store: Store,
    monkeypatch: pytest.MonkeyPatch,
    rounds: list[list[tuple[str, str, object]]],
) -> None:
    """The window is a few ticks of the clock here, else no row would be used."""
    monkeypatch.setattr(stat_cache, "RACY_WINDOW_NS", 1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "w")
        for place in PLACES:
            (root / place).mkdir(parents=True, exist_ok=True)
            (root / place / "f").write_bytes(b"")
        for changes in rounds:
            for change in changes:
                apply(root, *change)
            time.sleep(TICKS_S)
            whole, told = snapshot(disk_store, root, False)
            first, again = (snapshot(disk_store, root, True) for _ in range(2))
            assert first[0] == again[0] == whole
            for _, report in (first, again):
                assert sorted(report.excluded) == sorted(told.excluded)
                assert (report.private, report.derived) == (told.private, told.derived)
                assert report.findings == told.findings
                assert report.not_kept == told.not_kept
                assert (report.files, report.bytes) == (told.files, told.bytes)
                assert report.entries == told.entries
