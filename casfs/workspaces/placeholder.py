"""The directory of a namespace-only workspace as others see it: unwritable, with a README.

Only the commands of `casfs workspace exec` see the workspace there. A file that somebody puts
beside the README nevertheless (root may) is no part of it, so commit and close refuse.
"""

from __future__ import annotations

import os
from contextlib import suppress

from casfs.errors import Refused
from casfs.system.files import os_errors
from casfs.workspaces.registry import Workspace

README = "README"
TEXT = """\
This is a workspace of casfs that is visible only to the commands run in it:

    casfs workspace exec DIRECTORY -- COMMAND

Nothing can be written here. Without root, `casfs workspace open` makes a directory that all
programs see where fuse-overlayfs is installed, or by `--backend copy`.
"""
NAMES_SHOWN = 8


def make(workspace: Workspace) -> None:
    """Raises Failed."""
    with os_errors(f"cannot make {workspace.path / README}"):
        workspace.path.chmod(0o700)
        (workspace.path / README).write_text(TEXT)
        workspace.path.chmod(0o555)


def check(workspace: Workspace) -> None:
    """Raises Refused where a file was put there."""
    if workspace.state != "namespace-only":
        return
    names: list[str] = []
    with suppress(FileNotFoundError):
        names = sorted(set(os.listdir(workspace.path)) - {README})
    if names:
        not_shown = len(names) - NAMES_SHOWN
        shown = ", ".join(names[:NAMES_SHOWN]) + (f" and {not_shown} more" if not_shown > 0 else "")
        raise Refused(
            f"{workspace.path} holds files that are not in the workspace: {shown}; move them away"
            " (`casfs workspace exec` can copy them into it)"
        )


def remove(workspace: Workspace) -> None:
    """Leaves the directory as it was, with what was put there."""
    if workspace.state != "namespace-only":
        return
    mode = workspace.record.get("mode")
    with suppress(OSError):
        workspace.path.chmod(0o755 if mode is None else mode)
        if (workspace.path / README).read_bytes() == TEXT.encode():
            (workspace.path / README).unlink()
