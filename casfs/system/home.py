"""The home directory, which is not recorded by mistake."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from casfs.errors import Refused


def refuse_home_or_root(path: Path, force: bool | None) -> None:
    """Guards against recording a whole machine or a home directory with its keys by mistake. Raises
    Refused for a home directory and every directory above one, unless `force`; None stands for a
    verb without that option."""
    home = Path.home().resolve()
    # HOME may be set to another directory: the keys lie in that of the account.
    account_home = os.path.expanduser(f"~{_user()}")
    homes = {home, Path(account_home).resolve()}
    if force:
        return
    directory = path.resolve()
    if any(home.is_relative_to(directory) for home in homes):
        remedy = "name another directory" if force is None else "use --force"
        raise Refused(f"{directory}: refusing to record the root or home directory; {remedy}")


def _user() -> str:
    user_id = os.getuid()
    try:
        return pwd.getpwuid(user_id).pw_name
    # A container may run under a number that has no account; `~` alone is HOME again.
    except KeyError:
        return ""
