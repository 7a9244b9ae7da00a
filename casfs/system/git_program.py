"""Runs git, the user's own program, and no program that a repository names: an agent may have
written its configuration. So no hooks are run, of whosever configuration, and none of the filters
that are set in a repository; those that a person has set, such as git-lfs, are.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence

from casfs.errors import Failed

QUERY_TIMEOUT_S = 60.0
CAUSE = re.compile(r"^(fatal|error): ")
NO_PROGRAMS = "core.hooksPath=/dev/null", "core.fsmonitor=false"
# A question takes no lock: it would make a commit fail that is under way.
SETTINGS = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",  # which runs programs that a remote of the repository names
    "GIT_PAGER": "cat",
    "GIT_EDITOR": ":",
    "LC_ALL": "C",
}
# Commands that may read the content of files, and so run filters.
FILTERING = ("diff", "reset", "status", "switch", "update-index", "worktree")
OF_REPOSITORY = ("local", "worktree")  # scopes of settings
FILTER = "filter."
SETTINGS_COUNT = "GIT_CONFIG_COUNT"
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
    ours = {name: value for name, value in env.items() if name not in LOCAL_VARIABLES} | SETTINGS
    where, command = _divided(arguments)
    if command in FILTERING:
        listing = ("config", "--list", "--show-scope", "--name-only", "-z")
        listed = _run([*where, *listing], ours, expected=(0, 1), timeout=timeout)
        ours |= _without_filters(listed, ours)
    options = [word for setting in (*NO_PROGRAMS, *settings) for word in ("-c", setting)]
    return _run(
        [*options, *arguments], ours, sent=sent, expected=expected, timeout=timeout, umask=umask
    )


def _divided(arguments: Sequence[str]) -> tuple[Sequence[str], str]:
    """Returns the options that say where git is to work, and the command."""
    count = 0
    while arguments[count].startswith("-"):
        count += 2 if arguments[count] == "-C" else 1
    return arguments[:count], arguments[count]


def _without_filters(listed: str, env: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that turn the filters off that a repository sets, from a list of scopes and
    names. Variables, since in `-c` the name of a filter may not have a `=`."""
    words = listed.split("\0")
    names = dict.fromkeys(
        name.removeprefix(FILTER).rpartition(".")[0]
        for scope, name in zip(words[::2], words[1::2], strict=False)
        if scope in OF_REPOSITORY and name.startswith(FILTER)
    )
    off = {"clean": "", "smudge": "", "process": "", "required": "false"}
    text = env.get(SETTINGS_COUNT, "")
    count = int(text) if text.isdecimal() else 0
    variables = {}
    for name in names:
        for key, value in off.items():
            variables[f"GIT_CONFIG_KEY_{count}"] = f"{FILTER}{name}.{key}"
            variables[f"GIT_CONFIG_VALUE_{count}"] = value
            count += 1
    return {**variables, SETTINGS_COUNT: str(count)} if variables else {}


def _run(
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    sent: bytes = b"",
    expected: Collection[int],
    timeout: float,
    umask: int = -1,
) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            input=sent,
            capture_output=True,
            env=env,
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
