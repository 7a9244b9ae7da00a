"""What a person and agents do in a project: lines of a shell, at random."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from tests.support.repositories import OPTIONS

NAMES = ("a.txt", "b.txt", "src/c.txt", "src/deep/d.txt", "e e.txt", "node_modules/x/i.js", ".env")
GIT = f"git {' '.join(OPTIONS)}"


class Shell:
    """A process that lives on, as an agent does, and runs commands as its children."""

    def __init__(self, directory: Path) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            ["sh"], cwd=directory, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, command: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"( {command} ) >/dev/null </dev/null\necho over\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "over\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Commands:
    """Lines of a shell, as a person and an agent type them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._count = 0

    def line(self, who: str) -> str:
        self._count += 1
        return f"{who}{self._count}"

    def any(self, who: str) -> str:
        name = self._chance.choice(NAMES)
        quoted = f"'{name}'"
        line = self.line(who)
        number = self._chance.randint(1, 9)
        mode = self._chance.choice(["700", "755"])
        choices = [
            (8, f"mkdir -p $(dirname {quoted}); echo {line} >> {quoted}"),
            (6, f"sed -i '{number}s/.*/{line}/' {quoted}"),
            (3, f"sed -i '{number}d' {quoted}"),
            (2, f"rm -f {quoted}"),
            (2, f"mv {quoted} moved-{line}.txt"),
            (2, f"cp {quoted} copied-{line}.txt; chmod +x copied-{line}.txt"),
            (1, f"ln -sf a.txt link-{number}"),
            (1, f"rm -rf src; echo {line} > src"),
            (1, f"rm -rf src; mkdir -p src/empty-{number}"),
            (1, f"printf '\\0{line}' > binary"),
            (3, f"{GIT} add -A && {GIT} commit -qm {line}"),
            (1, f"{GIT} commit -qam {line}"),
            (1, f"chmod {mode} {quoted}"),
            (1, f"chmod {mode} src"),
            (1, f"{GIT} stash -q -u"),
            (1, f"{GIT} stash pop -q || {GIT} checkout -q -f ."),
            (1, f"{GIT} checkout -q -f -B branch-{number}"),
            (1, f"{GIT} branch -q -D branch-{number}"),
            (1, f"{GIT} tag -f tag-{number}"),
            (1, f"{GIT} rebase -q branch-{number} || {GIT} rebase --abort"),
            (1, f"{GIT} rebase -q branch-{number}"),  # may stop in the middle
            (1, f"{GIT} merge -q branch-{number} -m {line} || {GIT} merge --abort"),
            (1, f"{GIT} cherry-pick branch-{number}"),
            (1, f"{GIT} worktree add -q -B tree-{number} tree-{number}"),
            (1, f"{GIT} worktree remove --force tree-{number}"),
            (1, f"{GIT} init -q inner && cd inner && {GIT} commit -q --allow-empty -m {line}"),
            (2, f"{GIT} status; {GIT} diff --stat"),
            (1, f"{GIT} gc -q"),
            (1, f"{GIT} pack-refs --all"),
        ]
        if who == "A":
            choices += [
                (2, f"{GIT} reset -q --hard HEAD~1"),
                (2, f"{GIT} clean -qfdx -e .env"),
                (1, f"{GIT} checkout -q -- ."),
                (1, "rm -rf node_modules *.txt"),
                (1, f"{GIT} reflog expire --expire=now --all; {GIT} gc -q --prune=now"),
                (1, f"rm -rf inner tree-{number}"),
                (1, f"{GIT} commit -q --amend --allow-empty -m {line}"),
            ]
        weights = [weight for weight, _ in choices]
        return self._chance.choices([command for _, command in choices], weights)[0]
