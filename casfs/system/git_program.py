"""Runs git, the user's own program."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence

from casfs.errors import Failed

QUERY_TIMEOUT_S = 60.0
CAUSE = re.compile(r"^(fatal|error): ")
NO_HOOKS = "core.hooksPath=/dev/null"
# A question takes no lock: it would make a commit fail that is under way.
SETTINGS = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
LOCAL_VARIABLES = (  # of a repository around the caller; not passed to git
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_COMMON_DIR",
)


def git(
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    settings: Sequence[str] = (),
    sent: bytes = b"",
    expected: Collection[int] = (0,),
    timeout: float = QUERY_TIMEOUT_S,
    umask: int = -1,
) -> str:
    """Returns what git prints; `settings`: as of `git -c`; `sent`: on its stdin; `expected`: its
    exit codes. Raises Failed with git's own reason."""
    options = [word for setting in settings for word in ("-c", setting)]
    ours = {name: value for name, value in env.items() if name not in LOCAL_VARIABLES}
    try:
        done = subprocess.run(
            ["git", *options, *arguments],
            input=sent,
            capture_output=True,
            env={**ours, **SETTINGS},
            timeout=timeout,
            check=False,
            umask=umask,
        )
    except FileNotFoundError:
        raise Failed("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"git took longer than {timeout:g} s") from None
    if done.returncode not in expected:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it failed"]
        causes = (cause for cause in said if not cause.lower().startswith(("warning: ", "hint: ")))
        raise Failed(f"git: {CAUSE.sub('', next(causes, said[0]))}")
    return done.stdout.decode("utf-8", "surrogateescape")
