"""A thread has a tree by default; without one its programs run in an empty directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

from casfs.store.store import Store
from casfs.threads import lookup
from engine.workflow import registry as workflows
from tests.support.engine import Cli, daemon, loop, says, steps

SCRIPT = "ls -A >>/dev/stderr; pwd; echo $CASFS_STEP >>log"


def run(cli: Cli, opened: Store, *options: str, count: int = 2) -> list[dict[str, object]]:
    workflows.add(opened, loop(count))
    agent = f"a=command:{json.dumps(says({}, SCRIPT))}"
    with daemon(cli.root):
        made = cli(
            *("thread", "start", "sample", "--input", "x", "--agent", agent, "--wait"), *options
        ).word
    return steps(opened, lookup.find(opened, made))


def test_a_thread_without_a_workspace_option_records_its_files(cli: Cli, opened: Store) -> None:
    one, two = run(cli, opened)
    assert cli("tree", "ls", str(two["workspace"])).text.split()[-1] == "log"
    assert one["workspace"] != two["workspace"]
    assert "+1\n" in opened.get(str(one["changes"])).decode()


def test_no_workspace_runs_in_an_empty_directory_of_its_own(cli: Cli, opened: Store) -> None:
    one, two = run(cli, opened, "--no-workspace")
    assert (one["workspace"], two["changes"]) == (None, None)
    places = []
    for step in (one, two):
        detail = opened.node(str(step["detail"])).payload
        assert opened.get(detail["stderr"]) == b"", "the directory was empty"
        places.append(Path(opened.get(detail["stdout"]).decode().split("\n")[0]))
    assert len(set(places)) == 2
    assert not any(place.exists() for place in places)
    assert all(place.parent == cli.root / "workspaces" for place in places)
    assert os.listdir(cli.root / "workspaces") == []


def test_a_workspace_and_none_exclude_each_other(cli: Cli, tmp_path: Path) -> None:
    options = ("--workspace", str(tmp_path), "--no-workspace")
    said = cli.refused("thread", "start", "sample", "--input", "x", *options, code=2)
    assert "--no-workspace and --workspace exclude each other" in said
