"""The programs that tests call, and the one rule for where one is missing.

`packages.txt` beside this file names each program and its Debian package; `tests/run.sh` installs
them. Where one is missing all the same, the tests that need it are skipped. With CI in the
environment such a skip is a failure (tests/conftest.py): CI has what the suite needs.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from importlib.util import find_spec
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("packages.txt")
PACKAGES = dict(line.split() for line in LIST.read_text().splitlines())
DEVICE = "/dev/fuse"
MISSING = "missing: "  # the reason of every such skip starts so
IN_CI = "CI" in os.environ


def missing(*programs: str) -> str | None:
    """Returns the reason to skip, None where all are there. Raises KeyError for a program that
    is not listed in `packages.txt`."""
    packages = {program: PACKAGES[program] for program in programs}
    absent = [f"{one} (Debian: {packages[one]})" for one in programs if _find(one) is None]
    return MISSING + ", ".join(absent) if absent else None


def path(program: str) -> str:
    """Returns where a program is that is not missing: of a pattern, the last by number."""
    found = _find(program)
    assert found is not None
    return found


def script(name: str) -> str:
    """Returns where a program is that comes with a Python package of the environment. Skips the
    test that runs where it is missing."""
    found = shutil.which(name, path=sysconfig.get_path("scripts"))
    if found is None:
        pytest.skip(f"{MISSING}{name} (./mount.sh env)")
    return found


@contextmanager
def installing(folder: Path) -> Iterator[None]:
    """Holds a lock beside `folder`: of the suite's processes one installs into it, the others wait
    and find it ready."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def needs(*programs: str) -> pytest.MarkDecorator:
    """Returns the mark of a test that calls these programs."""
    return _skip(missing(*programs))


def is_missing(reason: str | None) -> bool:
    """Returns whether that is a reason of `missing`."""
    return (reason or "").startswith(MISSING)


def present(program: str) -> bool:
    """Returns whether a test may call a program that makes it sharper: always in CI."""
    return IN_CI or missing(program) is None


def require(*programs: str) -> None:
    """Skips the test that runs where a program is missing."""
    reason = missing(*programs)
    if reason is not None:
        pytest.skip(reason)


def _find(program: str) -> str | None:
    matches = glob(program) if "*" in program else [program]
    by_number = sorted(matches, key=lambda one: [*map(int, re.findall(r"\d+", one))])
    return next(filter(None, map(shutil.which, reversed(by_number))), None)


def _skip(reason: str | None) -> pytest.MarkDecorator:
    return pytest.mark.skipif(reason is not None, reason=str(reason))


def _missing_pyfuse3() -> str | None:
    if find_spec("pyfuse3") is None:
        return f"{MISSING}pyfuse3 (pip install 'casfs-store[pyfuse3]')"
    return None


needs_device = _skip(None if os.path.exists(DEVICE) else f"{MISSING}{DEVICE} (modprobe fuse)")
needs_pyfuse3 = _skip(_missing_pyfuse3())


def require_pyfuse3() -> None:
    """Skips a module that imports pyfuse3, at its import. In CI the import fails instead."""
    reason = _missing_pyfuse3()
    if reason is not None and not IN_CI:
        pytest.skip(reason, allow_module_level=True)
