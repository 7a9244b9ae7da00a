"""Patterns decide as git's own `check-ignore` does, for every path of a small tree."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from casfs.trees.snapshot.gitignore import Patterns
from tests.support.helpers import write_tree
from tests.support.programs import needs

pytestmark = needs("git")

FILES = {"keep": b"", "a.log": b"", "bar": {"keep": b"", "foo": {"x": b""}}, "foo": {"keep": b""}}
TREE = {
    "foo": FILES,
    "bar": FILES,
    "fooo": {"keep": b""},
    "keep": FILES,
    "a.log": b"",
    "foo bar": b"",
    "trailing ": b"",
    "ä": {"ö": b""},
    "*": b"",
    "[f": b"",
    "-": b"",
    "]": b"",
}
TABLE = """
foo/**|!foo/keep
foo/*|!foo/keep
foo/|!foo/keep
foo|!foo/keep
**|!*/|!keep
*|!*/|!*.log
/*|!/foo
/*|!/foo|/foo/*|!/foo/bar
foo/**/
**/foo
**/foo/**
foo/**/foo
foo/**/x
foo**
foo/b**/x
a/***
***/x
/foo/bar/|!/?oo
foo|!foo/
foo/|!foo
!foo|foo
/foo
foo/bar
bar/foo/|!bar/foo
*.log|!/a.log
[fb]*
[!fb]*
[^f]oo
fo[a-z]
fo[z-a]
[[:alpha:]]oo
[[:nonsense:]]oo
[f
\\[f
[]]
[]-]
[\\]]
[a-]
\\*
\\foo
foo\\ bar
foo bar
trailing
?
??
ä
ä/*
f[o/]o/bar
foo?keep
foo*keep
foo/[!/]*
#foo
\\#foo
\\!foo
bar/foo/
/foo/
foo/keep/
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_tree(tmp_path_factory.mktemp("git") / "w", TREE)
    subprocess.run(["git", "init", "--quiet", "--template=", root], check=True)
    (root / ".git/info").mkdir()
    return root


def below(root: Path) -> list[bytes]:
    """Every path but git's own."""
    found = []
    for folder, names, files in os.walk(os.fsencode(root)):
        if folder == os.fsencode(root):
            names.remove(b".git")
        found += [os.path.relpath(os.path.join(folder, n), os.fsencode(root)) for n in names]
        found += [os.path.relpath(os.path.join(folder, n), os.fsencode(root)) for n in files]
    return sorted(found)


def kept_by_git(root: Path, text: bytes) -> list[bytes]:
    (root / ".git/info/exclude").write_bytes(text)
    paths = below(root)
    done = subprocess.run(
        ["git", "-c", "core.excludesFile=", "check-ignore", "--no-index", "-z", "--stdin"],
        cwd=root,
        input=b"\0".join(paths) + b"\0",
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    left_out = set(done.stdout.split(b"\0"))
    return [path for path in paths if path not in left_out]


def kept_by_us(root: Path, text: bytes) -> list[bytes]:
    """What a walk finds that does not enter what is left out."""
    patterns, found = Patterns(text), []
    for path in below(root):
        above, _, name = path.rpartition(b"/")
        directory = os.path.isdir(os.path.join(os.fsencode(root), path))
        if (not above or above in found) and not patterns.decision(path, name, directory=directory):
            found.append(path)
    return found


@pytest.mark.parametrize("rules", TABLE.strip("\n").split("\n"))
def test_as_git_does(repository: Path, rules: str) -> None:
    text = "\n".join(rules.split("|")).encode() + b"\n"
    assert kept_by_us(repository, text) == kept_by_git(repository, text)


@pytest.mark.parametrize(
    "text", [b"\xef\xbb\xbffoo\n", b"foo\r\n!foo\r\n", b"foo", b"\n \nfoo  ", b"trailing\\ \n"]
)
def test_lines_as_git_has_them(repository: Path, text: bytes) -> None:
    assert kept_by_us(repository, text) == kept_by_git(repository, text)


@pytest.mark.parametrize("seed", range(60))
def test_as_git_does_for_whatever_comes(repository: Path, seed: int) -> None:
    dice = random.Random(seed)
    parts = "foo bar keep *.log * ** f* ?oo [fb]* b[!x]r fo[!/] [[:alpha:]]oo foo** ***".split()

    def line() -> str:
        glob = "/".join(dice.choice(parts) for _ in range(dice.randrange(1, 4)))
        keep, top, directory = (dice.random() < 0.3 for _ in range(3))
        return f"{'!' if keep else ''}{'/' if top else ''}{glob}{'/' if directory else ''}\n"

    text = "".join(line() for _ in range(dice.randrange(1, 5))).encode()
    assert kept_by_us(repository, text) == kept_by_git(repository, text), text


@pytest.mark.parametrize("text", [b"!", b"/", b"!/", b"foo\\", b"!\\"])
def test_what_is_no_pattern(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a valid pattern"):
        Patterns(b"ok\n" + text + b"\n")
