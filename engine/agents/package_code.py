"""The code of third-party agent packages: where an error arose in it, importing it anew.

A package is the modules below the first part of its entry point's module. When one of their files
has changed since the package was loaded, all are imported again; agents of running threads keep
the code that they have.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType

Stamp = frozenset[tuple[str, int, int]]  # file, mtime, size

_loaded: dict[str, Stamp] = {}


def describe(error: BaseException) -> str:
    """Returns an exception as one line, with the file and line of a third-party package in which
    it arose."""
    text = " ".join(str(error).split("\n"))
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _loaded:
            return f"{said} ({frame.f_code.co_filename}:{line})"
    return said


def forget_changed(module: str) -> None:
    """Removes the package of a module from the imported ones if its files have changed."""
    package = module.partition(".")[0]
    if package in _loaded and _stamp(package) != _loaded[package]:
        for name in _modules(package):
            del sys.modules[name]
        importlib.invalidate_caches()


def note_loaded(module: str) -> None:
    """Records the files of the package of a module that was just imported."""
    package = module.partition(".")[0]
    _loaded[package] = _stamp(package)


def _modules(package: str) -> dict[str, ModuleType]:
    known = list(sys.modules.items())
    return {name: one for name, one in known if name == package or name.startswith(f"{package}.")}


def _stamp(package: str) -> Stamp:
    found = set()
    for one in _modules(package).values():
        file = getattr(one, "__file__", None)
        if file is not None:
            try:
                stat = os.stat(file)
            except OSError:
                found.add((file, 0, 0))
            else:
                found.add((file, stat.st_mtime_ns, stat.st_size))
    return frozenset(found)
