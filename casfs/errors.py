"""The closed list of what can go wrong, with the exit code that a shell sees.

Every error carries one line for a person: what, where, what to do. The command line
prints it and exits with `exit_code`; the mount translates the class to an errno in one
table (`casfs.fuse.views.errors`). Nothing outside this list may leave a public function on
purpose; anything else is a bug.
"""

from __future__ import annotations


class CasfsError(Exception):
    """Base of all; on its own it means: the operation failed (exit 1)."""

    exit_code = 1


class Failed(CasfsError):
    """The world did not play along: unreadable file, full disk, a command that failed."""


class Corrupt(CasfsError):
    """Bytes in the store are not what their digest says, or a node does not parse."""


class CorruptBlob(Corrupt):
    """A blob's bytes do not hash to its name. Never served; only fsck moves it away."""


class Usage(CasfsError):
    """The command line itself is wrong."""

    exit_code = 2


class NotFound(CasfsError):
    """No such digest, head, path, thread, workflow or file."""

    exit_code = 3


class Refused(CasfsError):
    """Understood, and not done on purpose (a store of another version, a busy directory)."""

    exit_code = 4


class Invalid(Refused):
    """Input that breaks a format: JSON, schema, workflow, name. Nothing was stored."""


class Conflict(Refused):
    """A head was not what the writer believed, or a prefix means several digests."""


class NoDaemon(CasfsError):
    """The verb needs a running daemon and none answers."""

    exit_code = 5


class Suspended(CasfsError):
    """The thread that was waited for is suspended; its record says why."""

    exit_code = 7
