"""casfs list, stats and search."""

from __future__ import annotations

import pytest

from casfs.backend.derived import total_stored
from casfs.store.store import Store
from tests.support.cli import ID, lines, value
from tests.support.engine import Cli
from tests.support.helpers import LARGE
from tests.support.maintenance import NOTE, SECOND, content, ended, fork

# -- list and stats --------------------------------------------------------------------------


def test_list(cli: Cli, opened: Store) -> None:
    made = [content(opened, str(number)) for number in range(7)]
    assert lines(cli, "list", "content") == made
    assert value(cli, "list", "content") == made
    assert lines(cli, "list", "content", "--limit", "3") == made[:3]
    assert lines(cli, "list", "content", "--offset", "5") == made[5:]
    assert lines(cli, "list", "content", "--limit", "2", "--offset", "4") == made[4:6]
    assert value(cli, "list", "content", "--limit", "0") == []
    assert lines(cli, "list", "content", "--offset", "99") == []
    assert lines(cli, "list", "agent") == []


def test_list_has_the_nodes_of_every_version_of_a_type(cli: Cli, opened: Store) -> None:
    made = []
    for version in ("first", "second"):
        with opened.batch() as batch:
            batch.put_schema({**NOTE, "description": version})
        made.append(opened.put_node("note", {"text": version}).hash)
    assert lines(cli, "list", "note") == made
    assert value(cli, "stats")["types"]["note"] == 2


def test_list_of_schemas(cli: Cli) -> None:
    found = lines(cli, "list", "schema")
    assert len(found) == value(cli, "stats")["types"]["schema"] == len(lines(cli, "schema", "list"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nonsense"], 3),
        (["content", "--limit", "-1"], 2),
        (["content", "--offset", "x"], 2),
        ([], 2),
    ],
)
def test_list_of_what_is_not(cli: Cli, arguments: list[str], code: int) -> None:
    cli.refused("list", *arguments, code=code)


def test_stats(cli: Cli, opened: Store) -> None:
    thread = ended(opened, "one", "two")
    opened.put(LARGE)
    found = value(cli, "stats")
    total = total_stored(opened.blobs)
    assert (found["blobs"], found["bytes"], found["files"]) == (total.blobs, total.bytes, 1)
    assert found["heads"] == sum(1 for _ in opened.heads.list())
    assert found["types"]["thread-step"] == len(thread.steps)
    assert found["databaseBytes"] > 0
    shown = {line.split()[0]: line.split()[1] for line in lines(cli, "stats")}
    assert shown["blobs"] == str(total.blobs)
    assert shown["thread-step"] == "2"


# -- search ----------------------------------------------------------------------------------


def test_search(cli: Cli, opened: Store) -> None:
    thread = ended(opened, "the parser is fixed", "nothing else")
    fork(thread, SECOND, thread.steps[0])
    other = content(opened, "another parser")
    paths = [f"threads/{id}/steps/000001-planner/output.md" for id in (ID, SECOND)]
    assert sorted(lines(cli, "search", "fixed parser")) == sorted(
        f"{path}: the parser is fixed" for path in paths
    )
    assert lines(cli, "search", "another") == [f"nodes/{other}/: another parser"]
    assert lines(cli, "search", "fixed", "--thread", SECOND.lower()) == [
        f"{paths[1]}: the parser is fixed"
    ]
    (found,) = value(cli, "search", "fixed", "--thread", ID, "--type", "content")
    assert found == {
        "hash": opened.node(thread.steps[0]).payload["content"],
        "type": "content",
        "path": paths[0],
        "snippet": "the parser is fixed",
        "thread": ID,
        "step": 1,
        "role": "planner",
    }
    assert len(lines(cli, "search", "parser", "--limit", "1")) == 1
    assert value(cli, "search", "nowhere") == []
    assert lines(cli, "search", "nowhere") == []
    assert lines(cli, "search", '"') == []


def test_search_in_a_thread_that_is_none(cli: Cli, opened: Store) -> None:
    cli.refused("search", "x", "--thread", ID, code=3)
    cli.refused("search", "x", "--limit", "0", code=2)
    cli.refused("search", code=2)
