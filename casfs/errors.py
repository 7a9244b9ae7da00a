"""The closed list of errors, with their exit codes.

Every error carries one line for a person: the fault, the place, the remedy. The command line
prints it and exits with `exit_code`; the mount translates the class to an errno in one
table (`casfs.fuse.views.errors`). Nothing outside this list may leave a public function on
purpose; anything else is a bug.
"""

from __future__ import annotations


class CasfsError(Exception):
    """Base class; by itself: the operation failed (exit 1)."""

    exit_code = 1


class Failed(CasfsError):
    """The environment failed: unreadable file, full disk, a command that failed."""


class Corrupt(CasfsError):
    """Bytes in the store do not match their digest, or a node does not parse."""


class CorruptBlob(Corrupt):
    """A blob's bytes do not hash to its name. Never served; only fsck moves it away."""


class Purged(Corrupt):
    """A blob's content was deleted for good by `casfs purge`. `substitute`: the hash of the blob
    that readers get instead, if there is one."""

    def __init__(self, message: str, substitute: str | None = None) -> None:
        super().__init__(message, substitute)
        self.substitute = substitute

    def __str__(self) -> str:
        return str(self.args[0])


class Unreachable(CasfsError):
    """A remote does not answer, or not in time. What is local can still be used."""


class Usage(CasfsError):
    """The command line itself is wrong."""

    exit_code = 2


class NotFound(CasfsError):
    """No such digest, head, path, thread, workflow or file."""

    exit_code = 3


class Refused(CasfsError):
    """Understood, and refused on purpose (a store of another version, a busy directory)."""

    exit_code = 4


class Invalid(Refused):
    """Input that breaks a format: JSON, schema, workflow, name. Nothing was stored."""


class Conflict(Refused):
    """A head was not the expected one (compare-and-swap), or a prefix is ambiguous."""


class AccessDenied(Refused):
    """A remote refuses the credentials, there are none, or it has no such bucket."""


class NoDaemon(CasfsError):
    """The command needs a running daemon and none answers."""

    exit_code = 5


class DaemonUnreachable(NoDaemon):
    """A daemon runs, and this process may not speak with it, as in the sandbox of an agent."""


class Suspended(CasfsError):
    """The awaited thread is suspended; its record says why."""

    exit_code = 7
