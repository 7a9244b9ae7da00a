"""The error of a process that is to stay, and did not start: a mount, a daemon."""

from __future__ import annotations

from casfs.errors import CasfsError


class StartFailed(CasfsError):
    """The subprocess's error message and exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
