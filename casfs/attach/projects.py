"""The project of a directory: what is attached, and what is recorded with a session."""

from __future__ import annotations

import os
from pathlib import Path


def project_of(directory: Path) -> Path:
    """Returns the repository that holds a directory, or the directory itself."""
    real = Path(os.path.realpath(directory))
    for path in (real, *real.parents):
        # The home directory may be a repository, of dotfiles.
        if path != Path.home() and (path / ".git").exists():
            return path
    return real
