"""Names from elsewhere: none of this store moves unsaid, and nothing from there runs unseen."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casfs.checkpoints import checkpoint
from casfs.errors import CasfsError, Conflict, Invalid, Refused
from casfs.exchange import arrivals
from casfs.maintenance import archive, fsck, names
from casfs.remotes.remote import Settings
from casfs.store import removals
from casfs.threads import lookup, threads
from casfs.threads.threads import ThreadId
from engine.threads import forking, suspension, trust
from engine.workflow import registry as workflows
from engine.workflow import shipped
from tests.remotes.test_conflicts import continued
from tests.remotes.test_foreign_threads import suspended
from tests.remotes.test_foreign_workflows import add
from tests.remotes.test_hostile import planted
from tests.support.engine import Cli
from tests.support.remotes import Site
from tests.support.thread_example import make_thread

Sites = Callable[[Settings], Site]
EVIL = "touch /tmp/PWNED"


@pytest.fixture
def pair(directory: Settings, sites: Sites) -> tuple[Site, Site]:
    """Another's store, and mine."""
    return sites(directory), sites(directory)


def newest(one: Site, name: str) -> str:
    return checkpoint.head_name(name, checkpoint.find(one.store, name).id)


def archived(one: Site, path: Path, *texts: str) -> Path:
    with path.open("wb") as out:
        archive.export(one.store, *names.roots(one.store, [*texts]), out)
    return path


# -- checkpoints ----------------------------------------------------------------------------


def test_a_checkpoint_name_that_was_never_pushed_stays(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    ours = mine.checkpoint("app", {"a": b"mine"})
    other = theirs.checkpoint("app", {"a": b"theirs"})
    theirs.push("app")
    alias = other.replace("app", "origin.app")
    assert mine.pull().renamed == {other: alias}
    assert newest(mine, "app") == ours
    assert newest(mine, "origin.app") == alias
    assert mine.pull().refs == []  # it is here
    later = theirs.checkpoint("app", {"a": b"theirs, later"})
    theirs.push("app")
    assert mine.pull("app").renamed == {later: later.replace("app", "origin.app")}
    assert checkpoint.find(mine.store, "@last").name == "app"
    assert fsck.check(mine.store).faults == []


def test_one_that_stands_as_it_was_pulled_or_pushed_moves_and_that_is_said(
    pair: tuple[Site, Site],
) -> None:
    theirs, mine = pair
    first = theirs.checkpoint("app", {"a": b"1"})
    theirs.push("app")
    assert (mine.pull().refs, mine.pull().replaced) == ([first], {})
    second = theirs.checkpoint("app", {"a": b"2"})
    theirs.push("app")
    moved = mine.pull()
    assert moved.replaced == {second: theirs.heads()[first]}
    third = mine.checkpoint("app", {"a": b"3"})
    mine.push("app")
    assert theirs.pull().refs == [third]  # it had pushed all that it has


def test_one_with_a_checkpoint_of_this_store_is_another(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    theirs.checkpoint("app", {"a": b"1"})
    theirs.push("app")
    mine.pull()
    ours = mine.checkpoint("app", {"a": b"mine"})
    other = theirs.checkpoint("app", {"a": b"2"})
    theirs.push("app")
    assert mine.pull().renamed == {other: other.replace("app", "origin.app")}
    assert newest(mine, "app") == ours
    assert mine.pull("app", replace=True).refs == [other]
    assert newest(mine, "app") == other


def test_without_the_note_of_pushes_less_moves(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    mine.checkpoint("app", {"a": b"1"})
    mine.push("app")
    theirs.pull()
    theirs.checkpoint("app", {"a": b"2"})
    theirs.push("app")
    shutil.rmtree(mine.root / "remotes")
    assert next(iter(mine.pull().renamed.values())).startswith("checkpoints/origin.app/")


def test_a_name_that_would_hide_a_thread_is_another(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    thread = make_thread(mine.store, status="suspended")
    name = theirs.checkpoint(thread.id[-8:], {"a": b"1"})
    theirs.push(thread.id[-8:])
    assert mine.pull().renamed[name].startswith(f"checkpoints/origin.{thread.id[-8:]}/")


def test_too_long_and_taken_names_stay_and_the_rest_arrives(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    long = "a" * 60
    for one in pair:
        one.checkpoint(long, {"a": one.root.name.encode()})
        one.checkpoint("app", {"a": one.root.name.encode()})
    mine.checkpoint("origin.app", {"a": b"mine as well"})
    rest = theirs.checkpoint("rest", {"a": b"1"})
    theirs.push(long, "app", "rest")
    done = mine.pull()
    assert done.refs == [rest]
    assert sorted(why.partition(" and ")[0] for why in done.stayed.values()) == sorted(
        [f"{long} is a name of this store,", "app"]
    )
    with pytest.raises(Invalid, match=r"too long.*64 characters.*no name moved"):
        mine.pull(long)
    with pytest.raises(Conflict, match="names of this store; remove one"):
        mine.pull("app")


def test_an_alias_leaves_under_its_own_name(
    pair: tuple[Site, Site], sites: Sites, tmp_path: Path
) -> None:
    theirs, mine = pair
    for one in pair:
        one.checkpoint("app", {"a": one.root.name.encode()})
        add(one.store, 1, one.root.name)
    theirs.push("app", "sample")
    mine.pull()
    third = sites(Settings((tmp_path / "other").as_uri()))
    path = archived(mine, tmp_path / "a.tar", newest(mine, "origin.app"), "origin.sample")
    assert archive.load(third.store, path).renamed == {}
    assert {*third.heads()} == {newest(theirs, "app"), "workflows/sample"}
    with pytest.raises(Conflict, match="leaves as sample"):
        archived(mine, tmp_path / "b.tar", "sample", "origin.sample")
    assert mine.push("origin.app").refs == []  # it is there


# -- imports --------------------------------------------------------------------------------


def test_an_import_moves_no_name_of_this_store(pair: tuple[Site, Site], tmp_path: Path) -> None:
    theirs, mine = pair
    ours, other = (one.checkpoint("app", {"a": one.root.name.encode()}) for one in pair[::-1])
    flows = [add(one.store, number) for number, one in enumerate(pair[::-1], 1)]
    done = archive.load(mine.store, archived(theirs, tmp_path / "a.tar", "app", "sample"))
    assert done.renamed == {
        other: other.replace("app", "import.app"),
        "workflows/sample": "workflows/import.sample",
    }
    assert newest(mine, "app") == ours
    assert workflows.find_trusted(mine.store, "sample") == flows[0]
    with pytest.raises(Refused):
        workflows.find_trusted(mine.store, "import.sample")
    assert fsck.check(mine.store).faults == []
    assert archive.load(mine.store, tmp_path / "a.tar").heads == []
    later = add(theirs.store, 3)
    again = archive.load(mine.store, archived(theirs, tmp_path / "b.tar", "sample"))
    assert [*again.replaced] == ["workflows/import.sample"]
    assert workflows.find(mine.store, "import.sample") == later


# -- threads --------------------------------------------------------------------------------


def test_a_thread_of_this_store_moves_after_a_question_and_is_trusted_anew(
    pair: tuple[Site, Site],
) -> None:
    theirs, mine = pair
    thread = make_thread(mine.store, status="suspended")
    mine.push(thread.id)
    theirs.pull()
    copy = continued(theirs, thread)
    copy.step("planner", "One, elsewhere.")
    theirs.push(thread.id)
    asked: list[str] = []

    def answer(found: threads.Thread) -> bool:
        asked.append(found.id)
        return False

    assert "has moved on" in mine.pull(asks=answer).stayed[thread.name]
    assert (asked, mine.heads("threads/")) == ([thread.id], {thread.name: thread.start})
    done = mine.pull(asks=lambda found: True)
    assert done.replaced == {thread.name: thread.start}
    with pytest.raises(Refused, match="from origin"):
        trust.check(mine.store, [threads.get(mine.store, ThreadId(thread.id))])
    removals.undo(mine.store)
    assert mine.heads("threads/") == {thread.name: thread.start}
    trust.check(mine.store, [threads.get(mine.store, ThreadId(thread.id))])


def test_the_last_thread_is_one_of_this_store(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    ours = suspended(mine.store, "true")
    other = suspended(theirs.store, EVIL)
    theirs.push(other.id)
    mine.pull()
    trust.trust(mine.store, threads.get(mine.store, other.id))
    assert lookup.find(mine.store, "@last").id == ours.id


def test_a_name_of_a_thread_takes_none(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    ours = make_thread(mine.store, status="suspended")
    ours.move(ours.start, name="fix")
    for n, name in enumerate(("fix", "fix", ours.id[:8], "../x", ours.id.lower(), "free")):
        other = make_thread(theirs.store, f"01JE{n:022d}", status="suspended")
        other.move(other.start, name=name)
        theirs.push(other.id)
    mine.pull()
    found = [one.fields.get("name") for one in threads.list_threads(mine.store)]
    short = f"origin.{ours.id[:8]}"
    assert {one for one in found if one} == {"fix", "origin.fix", short, "free"}
    assert len([one for one in found if one == "fix"]) == 1
    assert lookup.find(mine.store, "fix").id == ours.id


# -- one's own machines ---------------------------------------------------------------------


def test_two_machines_of_ones_own(pair: tuple[Site, Site]) -> None:
    one, two = pair
    for machine in pair:
        machine.trust()
    one.checkpoint("app", {"a": b"1"})
    thread = suspended(one.store, "true")
    flow = add(one.store, 1)
    one.push("app", "sample", thread.id)
    two.pull()
    assert workflows.find_trusted(two.store, "sample") == flow
    trust.check(two.store, [threads.get(two.store, thread.id)])
    second = two.checkpoint("app", {"a": b"2"})
    own = one.checkpoint("app", {"a": b"3"})  # on both machines at once
    flow = add(two.store, 2)
    two.push("app", "sample")
    done = one.pull()
    assert (done.renamed, done.stayed) == ({}, {})
    assert {second, own} <= {*one.heads("checkpoints/app/")}
    assert workflows.find_trusted(one.store, "sample") == flow
    example = make_thread(one.store, status="suspended")
    one.push(example.id)
    two.pull()
    copy = continued(two, example)
    copy.step("planner", "On the other machine.")
    two.push(example.id)
    assert example.name in one.pull().replaced
    found = threads.get(one.store, ThreadId(example.id))
    trust.check(one.store, [found])
    assert "origin" not in found.fields  # it was started there


# -- hostile remotes ------------------------------------------------------------------------

FORGED = {"origin": "me", "trusted": True, "builtin": True}


@pytest.mark.parametrize("seed", range(40))
def test_a_hostile_remote(pair: tuple[Site, Site], tmp_path: Path, seed: int) -> None:
    """It moves names of every kind, and forges what a store notes of them."""
    theirs, mine = pair
    choose = random.Random(seed)
    shipped.install(mine.store)
    mine.checkpoint("app", {"agent.sh": b"mine"})
    add(mine.store, 1)
    thread = make_thread(mine.store, status="suspended")
    thread.move(thread.start, name="fix")
    mine.checkpoint("shared", {"a": b"1"})
    mine.push(thread.id, "shared")
    before, known = mine.heads(), {name for name, _ in mine.store.heads.list()}
    theirs.pull()
    copy = continued(theirs, thread)
    with theirs.store.batch() as batch:
        spec = {"name": "command", "version": "1", "config": {"argv": ["sh", "-c", EVIL]}}
        evil = workflows.put_agent(batch, spec)  # type: ignore[arg-type]
        agents = batch.put_node("thread-agents", {"agents": {"planner": evil}}).hash
    copy.step("planner", "Evil." * choose.choice([1, 5000]))
    copy.move(copy.steps[-1], status="suspended", agents=agents)
    stranger = suspended(theirs.store, EVIL + " " * choose.choice([1, 3000]))
    for name in choose.sample(["app", "shared", "fix", "a" * 60, "import.app", "new"], 4):
        theirs.checkpoint(name, {"agent.sh": EVIL.encode()})
    for name in choose.sample(["sample", "hello", "single", "import.sample", "w" * 64], 3):
        add(theirs.store, 2, EVIL + "x" * choose.choice([1, 3000]), name)
    texts = [*checkpoint.names(theirs.store), thread.id, stranger.id]
    theirs.push(*texts, *(f"workflows/{name}" for name, _ in workflows.listing(theirs.store)))
    refs = {name: ref for name, ref in theirs.refs().items() if not name.startswith("schemas/")}
    for name, ref in refs.items():
        forged: dict[str, Any] = {**FORGED, "origin": choose.choice(["me", "origin", "import"])}
        if not name.startswith("threads/"):
            forged["name"] = choose.choice(["app", "sample"])
        ref |= {"record": {**ref["record"], **forged}, "previous": before.get(name)}
    planted(theirs, refs=refs)

    try:
        done = mine.pull(*choose.choice([[], [], ["app"], [thread.id], ["sample"]]))
        said = {*done.refs, *done.replaced}
    except CasfsError:
        said = set()
    now = mine.heads()
    assert {name: now[name] for name in before} == before
    assert {*now} - known <= said
    assert newest(mine, "app") in before
    assert lookup.find(mine.store, "@last").id == thread.id
    assert lookup.find(mine.store, "fix").id == thread.id
    for name in {*now} - known:
        head = mine.store.heads.get(name)  # type: ignore[arg-type]
        assert head is not None
        assert head.record["origin"] == "origin"
        if not name.startswith("checkpoints/"):
            assert not arrivals.is_trusted(head)
    for found in threads.list_threads(mine.store):
        if found.id != thread.id:
            for run in (suspension.resume, forking.fork):
                with pytest.raises(Refused, match="casfs thread trust"):
                    run(mine.store, found)
    assert not Path("/tmp/PWNED").exists()
    assert fsck.check(mine.store).faults == []


# -- commands -------------------------------------------------------------------------------


@pytest.fixture
def url(cli: Cli, tmp_path: Path) -> str:
    cli("init")
    cli("remote", "add", "backup", (tmp_path / "bucket").as_uri())
    return (tmp_path / "bucket").as_uri()


def test_trust_of_a_remote(cli: Cli, url: str) -> None:
    text = (cli.root / "config.toml").read_text()
    assert "on a terminal, or with --yes" in cli.refused("remote", "trust", "backup", code=4)
    assert (cli.root / "config.toml").read_text() == text
    assert cli("remote", "trust", "backup", "--yes").text == "backup is trusted\n"
    assert cli("remote", "list").text == f"backup\t{url}\t\ttrusted\n"
    (found,) = cli("remote", "list", "--json").json
    assert found["trusted"] is True
    assert cli("remote", "trust", "backup", "--remove").text == "backup is not trusted\n"
    assert cli("remote", "list").text == f"backup\t{url}\t\t\n"


@pytest.mark.parametrize("kind", ["remote", "workflow", "thread"])
def test_a_trust_of_a_name_that_is_not_there(cli: Cli, url: str, kind: str) -> None:
    text, heads = (cli.root / "config.toml").read_text(), cli("heads").text
    for name in ("none", "-", "a" * 300, "a/b", "\x1b[2J"):
        said = cli.refused(kind, "trust", "--yes", "--", name, code=3)
        assert said.count("\n") <= 1
        assert f"no {kind}" in said
        assert "\x1b" not in said
    assert (cli.root / "config.toml").read_text() == text
    assert cli("heads").text == heads
    assert "import" in cli.refused("remote", "add", "import", url, code=4)


def test_what_a_pull_says(cli: Cli, url: str, pair: tuple[Site, Site], tmp_path: Path) -> None:
    theirs, _ = pair
    cli("remote", "add", "other", theirs.settings.url)
    theirs.checkpoint("app", {"a": b"1"})
    theirs.push("app")
    assert cli("pull", "other").text.startswith("pulled app@")
    theirs.checkpoint("app", {"a": b"2"})
    add(theirs.store, 1, EVIL, "hello")
    theirs.push("app", "workflows/hello")
    lines = cli("pull", "other").text.splitlines()
    assert lines[0].startswith("moved app@")
    assert lines[0].partition(", was ")[2]
    assert lines[1].startswith("pulled hello as other.hello: ")
    assert EVIL in lines[1]
