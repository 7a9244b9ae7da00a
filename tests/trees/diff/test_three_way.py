"""Three-way merges of texts, as git makes them."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from casfs.trees.diff.three_way import merge
from tests.support.programs import needs

BASE = b"".join(b"%d\n" % n for n in range(12))


def edited(*changes: tuple[int, bytes]) -> bytes:
    lines = BASE.splitlines(keepends=True)
    for place, text in changes:
        lines[place] = text
    return b"".join(lines)


def merged(base: bytes, ours: bytes, theirs: bytes) -> tuple[bytes, int]:
    found = merge(base, ours, theirs, ("ours", "theirs"))
    return found.text, found.conflicts


def by_git(folder: Path, base: bytes, ours: bytes, theirs: bytes) -> tuple[bytes, int]:
    for name, text in (("base", base), ("ours", ours), ("theirs", theirs)):
        (folder / name).write_bytes(text)
    command = ["git", "merge-file", "-p", "-L", "ours", "-L", "base", "-L", "theirs"]
    done = subprocess.run(
        [*command, "ours", "base", "theirs"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    return done.stdout, done.returncode


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (edited((1, b"a\n")), edited((10, b"b\n"))),
        (edited((1, b"a\n")), edited((1, b"a\n"), (5, b""))),
        (edited((1, b"a\n")), edited((1, b"b\n"))),
        (edited((1, b"a\n")), edited((2, b"b\n"))),
        (edited((1, b"a\n")), edited((3, b"b\n"))),
        (edited((4, b"")), edited((4, b"x\n"))),
        (edited((4, b"")), edited((4, b""))),
        (edited((0, b"a\n0\n")), edited((0, b"b\n0\n"))),
        (edited((11, b"11")), edited((11, b"11\n12\n"))),
        (edited((11, b"11")), edited((11, b"12"))),
        (edited((2, b"a\n3\n4\n5\nb\n")), edited((2, b"c\n3\n4\n5\nd\n"))),
        (edited((2, b"a\nx\ny\nz\nt\nb\n")), edited((2, b"c\nx\ny\nz\nt\nd\n"))),
        (BASE, b""),
        (edited((1, b"a\n")), b""),
        (edited((3, b"a\n")).replace(b"\n", b"\r\n"), edited((3, b"b\n"))),
    ],
)
@needs("git")
def test_as_git(tmp_path: Path, ours: bytes, theirs: bytes) -> None:
    assert merged(BASE, ours, theirs) == by_git(tmp_path, BASE, ours, theirs)


@needs("git")
def test_random_edits_as_git(tmp_path: Path) -> None:
    rng = random.Random(7)

    def change(lines: list[bytes], who: bytes) -> list[bytes]:
        lines = list(lines)
        for count in range(rng.randint(1, 4)):
            at, new = rng.randrange(len(lines)), b"%s%d\n" % (who, count)
            lines[at : at + rng.randint(0, 2)] = [new] * rng.randint(0, 1)
        return lines

    for _ in range(60):
        base = [b"%d\n" % n for n in range(rng.randint(5, 40))]
        texts = [b"".join(one) for one in (base, change(base, b"o"), change(base, b"t"))]
        assert merged(*texts) == by_git(tmp_path, *texts), texts


@needs("git")
def test_markers_end_as_the_lines_do(tmp_path: Path) -> None:
    texts = [
        text.replace(b"\n", b"\r\n") for text in (BASE, edited((3, b"a\n")), edited((3, b"b\n")))
    ]
    assert merged(*texts) == by_git(tmp_path, *texts)
    assert b"=======\r\n" in merged(*texts)[0]


def test_nothing_changed() -> None:
    assert merged(BASE, BASE, BASE) == (BASE, 0)
    assert merged(b"", b"", b"new") == (b"new", 0)
    assert merged(b"", b"a", b"b") == (b"<<<<<<< ours\na\n=======\nb\n>>>>>>> theirs\n", 1)
