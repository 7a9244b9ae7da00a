"""The public conformance suites that tests run, out of source distributions on PyPI.

`python -m tests.support.suites` fetches them with pip into a cache directory of the user; a test
that needs one fetches it by itself. A distribution's digest is pinned. Where one cannot be had
the tests that need it are skipped; with CI in the environment they fail.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tests.support import programs

FETCH_TIMEOUT_S = 300
ENV = dict(os.environ)  # before a test hides the user's home
CACHE = Path(ENV.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "casfs-tests"


@dataclass(frozen=True)
class Suite:
    """A directory `root` of the source distribution `package`-`version`."""

    package: str
    version: str
    sha256: str
    root: str

    @property
    def file(self) -> str:
        return f"{self.package}-{self.version}.tar.gz"


JSON_SCHEMA = Suite(
    "jsonschema",
    "4.26.0",
    "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326",
    "json/tests/draft2020-12",
)
JSONATA = Suite(
    "jsonata2py",
    "0.1.3",
    "ae2821233f4724b9cb96320537602b23d7630c68312a3b241a53bd04f278661e",
    "tests/resources/jsonata-test-suite",
)


def fetch(suite: Suite) -> Path:
    """Returns the archive of a suite. Raises OSError where it cannot be had."""
    path = CACHE / suite.file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            _download(suite, Path(scratch))
            (Path(scratch) / suite.file).rename(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != suite.sha256:
        path.unlink()
        raise OSError(f"{suite.file} has another digest than the pinned one")
    return path


def _download(suite: Suite, directory: Path) -> None:
    requirements = directory / "requirements.txt"
    requirements.write_text(f"{suite.package}=={suite.version} --hash=sha256:{suite.sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    try:
        done = subprocess.run(
            [*pip, "--require-hashes", "-r", str(requirements), "-d", str(directory)],
            capture_output=True,
            text=True,
            env=ENV,
            timeout=FETCH_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{suite.file}: pip took longer than {FETCH_TIMEOUT_S} s") from None
    if done.returncode or not (directory / suite.file).exists():
        raise OSError(f"{suite.file} cannot be had: {done.stderr.strip()[-500:]}")


@lru_cache
def load(suite: Suite) -> dict[PurePosixPath, Any]:
    """Returns a suite's files by path below its root, JSON parsed and others as text; skips the
    test where the suite cannot be had, and fails it in CI."""
    try:
        archive = fetch(suite)
    except OSError as error:
        if programs.IN_CI:
            raise
        pytest.skip(str(error))
    return dict(_files(archive, f"{suite.package}-{suite.version}/{suite.root}"))


def _files(archive: Path, root: str) -> Iterator[tuple[PurePosixPath, Any]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if member.isfile() and path.is_relative_to(root):
                source = tar.extractfile(member)
                assert source is not None
                text = source.read().decode()
                yield path.relative_to(root), json.loads(text) if path.suffix == ".json" else text


if __name__ == "__main__":
    for one in (JSON_SCHEMA, JSONATA):
        print(fetch(one))
