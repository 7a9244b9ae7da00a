"""Files of repositories, and rows of remotes, mutated: each is recorded, or refused in a line.

    python -m tests.harness.from_repositories repositories [--count 2000] [--seed 1]
    python -m tests.harness.from_repositories rows

- `repositories`: what a clone may bring: `.env` with the keys that people use and values that are
  words of our own records, rules of git and casfs, git's own files, links, pipes, directories where
  a file is expected. A call of a session is recorded in each, with the file that it made, and taken
  back; the person's file stays; commands say what is wrong in a line.
- `rows`: entries of a remote's log with other values, and damaged packs. A pull takes what is
  sound, or says what is damaged; `fsck` of the store that pulls is clean.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from casfs.errors import CasfsError
from casfs.maintenance import fsck
from casfs.remotes.log import MAX_ENTRY_BYTES
from casfs.remotes.remote import Settings
from casfs.rewind import rewind_files
from casfs.store.store import Store
from casfs.system import mounts
from casfs.system.zstd import Dictionary
from casfs.trees import tree
from tests.harness.from_outside import ENV_WORDS, Wrong, main
from tests.support.attached_agent import AttachedAgent
from tests.support.engine import spawn
from tests.support.following import OwnSessionDirectory
from tests.support.json_mutator import TEXTS, JsonMutator
from tests.support.new_store import init_store
from tests.support.remotes import Site, site
from tests.support.repositories import git

FILES = (
    ".env", ".env.local", ".casfsignore", ".gitignore", ".gitattributes", ".gitmodules",
    ".worktreeinclude", ".env.worktree", "config/.env", ".git/config", ".git/HEAD",
    ".git/packed-refs", ".git/index", ".git/info/exclude", ".git/shallow",
    ".git/objects/info/alternates", ".git/refs/heads/main", ".claude/settings.local.json",
)  # fmt: skip
RULES = (
    "*", "**", "!*", "!", "/", "//", "\\", "[", "[!", "[a-", "a**b", "!.git/", ".git", "**/.git",
    "node_modules/", "#", "\\#", " ", "a.txt", "!a.txt", "made", "*.env", "**/" * 40 + "x",
    "[" + "a" * 5000 + "]", "?" * 3000, "{a,b}", "../*", "/etc", "~/", "$HOME", "%00", "x: [",
)  # fmt: skip
CONFIG = (
    "[core]", "\tbare = true", "\tworktree = /etc", "\tfsmonitor = touch made-by-git", "[include]",
    "\tpath = config", "\trepositoryformatversion = 99", "[extensions]", "\tobjectFormat = sha256",
    "[filter \"x\"]", "\tclean = touch made-by-git", "[alias]", "\tstatus = !touch made-by-git",
    "ref: refs/heads/main", "ref: ../../../etc/passwd", "0" * 40, "f" * 40 + " refs/heads/x",
    "# pack-refs with: peeled", "^" + "0" * 40, "[submodule \"../x\"]", "\turl = ext::sh -c x",
    "* text eol=crlf", "* filter=x diff=x merge=x", "PORT={port+1}", "X={port+99999999999}", "Y={",
)  # fmt: skip
# The parts of the keys that people use, of which each pair is one: 31 x 19.
OWNERS = (
    "", "APP", "API", "AUTH", "AWS", "AZURE", "CACHE", "DATABASE", "DB", "DISCORD", "DJANGO",
    "DOCKER", "EMAIL", "FIREBASE", "GCP", "GITHUB", "GOOGLE", "JWT", "MAIL", "MONGO", "MYSQL",
    "NEXT_PUBLIC", "NODE", "OPENAI", "POSTGRES", "REDIS", "S3", "SENTRY", "SESSION", "SMTP",
    "STRIPE",
)  # fmt: skip
NAMES = (
    "ACCESS_KEY", "BUCKET", "CLIENT_ID", "CLIENT_SECRET", "DEBUG", "ENV", "HOST", "ID", "KEY",
    "NAME", "PASSWORD", "PORT", "PRIVATE_KEY", "REGION", "SECRET", "TOKEN", "URL", "USER",
    "VERSION",
)  # fmt: skip
KEYS = tuple("_".join(filter(None, (owner, name))) for owner in OWNERS for name in NAMES)
COMMANDS = (
    ("status", "."), ("checkpoint", "create", "c", "."), ("rewind", "--list"), ("blame", "a.txt"),
    ("worktree", "add", "w"), ("worktree", "apply", "w"), ("worktree", "rm", "w"), ("log", "."),
    ("diff", "@last@0", "."), ("doctor",), ("worktree", "list"), ("undo", "--list"),
)  # fmt: skip
PER_STORE = 25  # repositories, or pulls
COMMANDS_EACH = 2


@contextmanager
def _directory() -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="casfs-repositories-"))
    try:
        yield top
    finally:
        for point in mounts.mounted_below(top):  # of worktrees
            mounts.unmount(point, lazy=True)
    shutil.rmtree(top)


def _check_store(store: Store) -> None:
    report = fsck.check(store)
    if report.faults:
        raise Wrong(f"fsck: {report.faults}")


# -- repositories -------------------------------------------------------------------------


class Repository:
    """A cloned project, some of whose files are mutated. `said`: what these have, for a fault."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory = directory
        self._chance = chance
        self.said: list[str] = []
        directory.mkdir()
        (directory / "a.txt").write_text("one\n")
        (directory / ".gitignore").write_text("node_modules/\n.env\n")
        git(directory, "init", "-q", "-b", "main")
        git(directory, "add", ".")
        git(directory, "commit", "-qm", "first")
        for name in chance.sample(FILES, chance.randint(1, 4)):
            self._change(directory / name)

    def _change(self, file: Path) -> None:
        if file.parent.is_file() or file.parent.is_symlink():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        self._remove(file)
        kind = self._chance.choices(("text", "bytes", "other"), (8, 2, 1))[0]
        if kind == "other":
            self._put_no_file(file)
        else:
            data = self._text() if kind == "text" else self._chance.randbytes(200)
            file.write_bytes(data)
            self.said.append(f"{file.name}: {data[:300]!r}")

    def _remove(self, file: Path) -> None:
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink(missing_ok=True)

    def _put_no_file(self, file: Path) -> None:
        targets = [file.name, "nowhere", "..", "dir"]
        # At a pipe where it expects a file, git waits for ever; it replaces what its own link leads
        # to, as root a device.
        if ".git" not in str(file.relative_to(self.directory)):
            targets += ["/dev/zero", "/", "pipe"]
        target = self._chance.choice(targets)
        self.said.append(f"{file.name} -> {target}")
        match target:
            case "dir":
                file.mkdir()
            case "pipe":
                os.mkfifo(file)
            case _:
                file.symlink_to(target)

    def _text(self) -> bytes:
        lines = [self._line() for _ in range(self._chance.choice((1, 3, 30)))]
        text = self._chance.choice(("\n", "\r\n", "\r")).join(lines)
        encoding = self._chance.choice(("utf-8",) * 6 + ("utf-16", "utf-8-sig"))
        return text.encode(encoding, "surrogatepass")

    def _line(self) -> str:
        chance = self._chance
        kind = chance.randrange(4)
        if kind == 0:
            return chance.choice(RULES)
        if kind == 1:
            return chance.choice(CONFIG)
        value = chance.choice((*ENV_WORDS, *TEXTS)) if kind == 2 else chance.choice(ENV_WORDS)
        quote = chance.choice(("", "", '"', "'", "`"))
        return f"{chance.choice(('', '', 'export '))}{chance.choice(KEYS)}={quote}{value}{quote}"


def play_repositories(count: int, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    chance = random.Random(seed)
    done = 0
    while done < count:
        with _directory() as top, init_store(top / "store") as store:
            for number in range(min(PER_STORE, count - done)):
                repository = Repository(top / f"project{number}", chance)
                try:
                    counts[_play_call(store, repository)] += 1
                    _play_commands(store, repository, chance)
                except Wrong as error:
                    raise Wrong(f"{error}; {repository.said}") from error
                done += 1
            _check_store(store)
    return counts


def _play_call(store: Store, repository: Repository) -> str:
    """Records a call, and takes it back; returns how that ended."""
    directory = repository.directory
    try:
        followed = OwnSessionDirectory(store, directory, None)
        try:
            agent = AttachedAgent(store, directory, followed, session=directory.name)
            agent.prompt()
            agent.run("echo made > made; echo two >> a.txt")
            agent.stop()
            (call,) = agent.steps()[-1].calls
            if call.after is None:
                return "recorded without files" if call.fault else _fail("a call has no files")
            if tree.find(store, call.after.full, b"a.txt") is None:
                return "a.txt left out"
            return _play_rewind(store, agent)
        finally:
            followed.close()
    except CasfsError as error:
        return type(error).__name__
    except Exception as error:
        raise Wrong(repr(error)) from error


def _fail(text: str) -> str:
    raise Wrong(text)


def _play_rewind(store: Store, agent: AttachedAgent) -> str:
    planned = rewind_files.plan_last(store, agent.directory, agent.steps())
    rewind_files.do(store, agent.directory, planned)
    if (agent.directory / "a.txt").read_text() != "one\n":
        raise Wrong("a.txt is not as it was")
    return "recorded, taken back"


def _play_commands(store: Store, repository: Repository, chance: random.Random) -> None:
    for words in chance.sample(COMMANDS, COMMANDS_EACH):
        try:
            ended = spawn("--store", store.root, *words, cwd=repository.directory)
        except subprocess.TimeoutExpired:
            raise Wrong(f"{words} has not ended") from None
        if "Traceback" in ended.stderr or "internal error" in ended.stderr or ended.returncode < 0:
            raise Wrong(f"{words}: {ended.stderr}")
        if (repository.directory / "made-by-git").exists():
            raise Wrong(f"{words} has run a program that the repository names")
    if not (repository.directory / "a.txt").exists():
        raise Wrong("a.txt is gone")


# -- rows of remotes ----------------------------------------------------------------------


def play_rows(count: int, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    chance = random.Random(seed)
    with _directory() as top:
        here = site(top / "here", Settings((top / "remote").as_uri()))
        for number in range(3):
            here.checkpoint("app", {"a": f"{number}\n".encode(), "b": {"c": b"x" * 5000}})
            here.push("app")
        here.store.close()
        done = 0
        while done < count:
            with _directory() as folder:
                shutil.copytree(top / "remote", folder / "remote")
                there = site(folder / "there", Settings((folder / "remote").as_uri()))
                for _ in range(min(PER_STORE, count - done)):
                    shutil.rmtree(folder / "remote")
                    shutil.copytree(top / "remote", folder / "remote")
                    counts[_pull(there, folder / "remote", chance)] += 1
                    done += 1
                _check_store(there.store)
                there.store.close()
    return counts


def _pull(there: Site, remote: Path, chance: random.Random) -> str:
    """Pulls from a remote of which some files are others; returns how that ended."""
    files = [path for path in sorted(remote.rglob("*")) if path.is_file()]
    rows = [path for path in files if path.parent.name == "log"]
    changed = chance.choice(rows if chance.random() < 0.8 else files)
    data = changed.read_bytes()
    mutated = _mutated(data, chance, is_row=changed in rows)
    changed.chmod(0o600)
    changed.write_bytes(mutated)
    try:
        there.pull(lazy=chance.random() < 0.2)
    except CasfsError as error:
        return type(error).__name__
    except Exception as error:
        raise Wrong(f"{changed.name}: {error!r}: {mutated[:600]!r}") from error
    return "pulled"


def _mutated(data: bytes, chance: random.Random, *, is_row: bool) -> bytes:
    if is_row and chance.random() < 0.9:
        row = Dictionary().decompress(data, MAX_ENTRY_BYTES)
        return Dictionary().compress(JsonMutator(chance).mutated(row))
    cut = chance.randrange(len(data))
    return data[:cut] + chance.randbytes(chance.choice((0, 1, 4))) + data[cut + 1 :]


PLAYS = {"repositories": play_repositories, "rows": play_rows}


if __name__ == "__main__":
    main(PLAYS, __doc__, count=2000)
