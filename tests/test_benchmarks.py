"""Every benchmark runs, at its smallest size and without the programs that it compares casfs with.

What it measures then says nothing: it shows that no change of the product has broken it. Of the
long ones only some parts run, those that use most of the product.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from casfs.workspaces import strategies
from tests.support import programs
from tests.support.browser import AXE
from tests.support.postgres_server import POSTGRES
from tests.support.programs import needs, needs_device
from tests.support.strategies import skip_without

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
TIMEOUT_S = 110
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount, or drop caches")
WITH_BROWSER = (
    needs("chromium", "chromedriver", "npm"),
    pytest.mark.skipif(not AXE.exists(), reason=f"{programs.MISSING}axe-core (tests/run.sh)"),
)
WITH_SEAWEED = ("remote", "scale")
# {work}: an empty directory; {tree}: one to record; {rules}: Go sources as those of gitleaks.
SMALLEST = {
    "agents --dir {work} --turns 12 --steps 2 --sessions 1": (),
    "attach hooks --dir {work} --files 300 --turns 2": (needs("git"),),
    "attach disk --dir {work} --gigabytes 0.004 --turns 3": (),
    "changes --dir {work} --mib 9 --versions 1 --pages 1": (),
    "commits HEAD --dir {work} --tree {tree} --rounds 1": (needs("git"), needs_device),
    "damage --dir {work} --tree {tree} --reads 20 cold": (AS_ROOT, needs_device),
    "engine --dir {work} --rounds 1 --at-once 2x3 --in-turn 2x3 --files 10 --deep 30": (AS_ROOT,),
    "engine_daemon --dir {work} --steps 3 --threads 2 --seconds 0.2": (),
    "history {work} 40 --rounds 1": (needs("git"),),
    "history bisect {work} 100 --files 20 --rounds 1": (needs("git"),),
    "history forks {work} --steps 2 --files 3 --count 10 --rounds 1": (),
    "history turns {work} --turns 1 --files 100 --made 1 --rounds 1 --no-model": (AS_ROOT,),
    "history watch {work} --directories 1 --rounds 1 --idle 0.2": (needs("git"),),
    "mount --dir {work} --tree {tree} --rounds 1 --peers native 'casfs, builtin'"
    " --checkpoints 1 --files 10 --parts walks ready memory": (needs_device,),
    "native --dir {work} --tree {tree} --rounds 1 --files 60 --parts image shared workspace": (
        AS_ROOT,
        needs_device,
        needs("fincore"),
        skip_without(strategies.NATIVE),
    ),
    "overlay_commit --dir {work} --rounds 1 60": (AS_ROOT, needs_device),
    "packs --dir {work} --tree {tree} --rounds 1 --gib 1 --checkpoints 1 first pack": (
        AS_ROOT,
        needs("git", "mkfs.ext4", "umount", "zstd"),
    ),
    "remote --dir {work} --tree {tree} --rounds 1 --steps 3 steps": (),
    "scale --rounds 1 --steps 2 --seconds 1 --daemons 1 --threads 1 steps requests": (
        needs(POSTGRES, "setpriv"),
    ),
    "secrets cost {tree} --rounds 1": (),
    "secrets findings {tree}": (),
    "secrets_corpus {rules}": (),
    "store --dir {work} --count 20 --mib 16": (needs("git"),),
    "store_referrers --dir {work} --nodes 1000 --runs 1": (),
    "web --dir {work} --threads 1 --steps 20 --files 200 --starts 2 pages": (),
    "web --dir {work} --rate 50 --seconds 3 --at-once 1 latency": WITH_BROWSER,
    "worktree --dir {work} --files 200 --tracked 20 --rounds 1": (needs("git"),),
    "workspaces_ignored --dir {work} --mib 1 --files 10 --threads 2": (AS_ROOT,),
    "workspaces --dir {work} --tree {tree} --rounds 1 --states 2 first space": (
        needs("git", "zstd"),
    ),
}
RUN_BY_OTHERS = {"scale_peers": "in an environment of its own", "scale_steps": "by scale"}
RULES = """
package rules

func Example() *config.Rule {
	tps := utils.GenerateSampleSecrets("example", "AKIA" + secrets.NewSecret(`[A-Z2-7]{16}`))
	fps := []string{"key = example"}
	return utils.Validate(r, tps, fps)
}
"""


def module(command: str) -> str:
    """The module in benchmarks/ whose `main` a command runs."""
    words = command.split()
    below = "_".join(words[:2])  # of `history forks`
    return below if (BENCHMARKS / f"{below}.py").exists() else words[0]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A hundred small files, of which one in a hundred may change, and some in packs."""
    chance, folder = random.Random(1), tmp_path / "tree/include"
    folder.mkdir(parents=True)
    for number in range(100):
        size = 9000 if number % 20 == 0 else 100
        (folder / f"{number}.h").write_bytes(chance.randbytes(size))
    return folder.parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=marks, id="-".join(re.findall(r"^\w+(?: [a-z]+)?", command)))
        for command, marks in SMALLEST.items()
    ],
)
def test_runs(command: str, tmp_path: Path, tree: Path) -> None:
    if module(command) in WITH_SEAWEED:
        programs.script("weed")
    work, rules = tmp_path / "work", tmp_path / "rules"
    work.mkdir()
    rules.mkdir()
    (rules / "example.go").write_text(RULES)
    name, *arguments = shlex.split(command.format(work=work, tree=tree, rules=rules))
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\|---", done.stdout, re.MULTILINE), done.stdout


def test_every_program_is_run() -> None:
    with_main = {
        path.stem
        for path in BENCHMARKS.glob("*.py")
        if re.search(r"^def main\(", path.read_text(), re.MULTILINE)
    }
    assert with_main == {module(command) for command in SMALLEST} | RUN_BY_OTHERS.keys()
