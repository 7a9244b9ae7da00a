"""The conformance suite for heads: compare-and-swap, records, listing."""

from __future__ import annotations

import io
import threading

import pytest

from casfs.backend.derived import publish_group
from casfs.backend.protocols import MAX_RECORD_BYTES, Backend, Head, Publication, discard
from casfs.digest import Digest, NodeHash
from casfs.errors import Conflict, Invalid, NotFound
from tests.contracts.contract import ABSENT, Factory, checks, create, get, put, stage, swap

NAMES = ["a", "a/b", "a0", "b", "ä", "ÿ", "ı", "Ā", "\ud7ff", "\ue000", "\uffff", "𐀀", "😀", "a/😀"]


def a_head_is_created_moved_and_deleted(make_backend: Factory) -> None:
    backend = make_backend()
    one, two = put(backend, b"1"), put(backend, b"2")
    assert get(backend, "name") is None
    first = create(backend, "name", one, state="new")
    assert get(backend, "name") == first
    second = Head(two, {"state": "moved", "list": [1, None, "ü"], "half": 0.5})
    backend.publish([], [swap("name", first, second)])
    assert get(backend, "name") == second
    backend.publish([], [swap("name", second, None)])
    assert get(backend, "name") is None
    create(backend, "name", one)
    assert get(backend, "name") == Head(one, {})


def a_head_moves_with_the_blobs_it_needs(make_backend: Factory) -> None:
    backend = make_backend()
    staged = backend.blobs.stage(io.BytesIO(b"new"))
    backend.publish([staged], [swap("name", None, Head(NodeHash(staged.digest.hash)))])
    found = get(backend, "name")
    assert found is not None
    assert backend.blobs.get(found.hash).data == b"new"


def a_head_is_not_moved_to_what_is_not_there(make_backend: Factory) -> None:
    backend = make_backend()
    with pytest.raises(NotFound, match=ABSENT):
        create(backend, "name", ABSENT)
    assert get(backend, "name") is None


def another_hash_is_a_conflict(make_backend: Factory) -> None:
    backend = make_backend()
    one, two = put(backend, b"1"), put(backend, b"2")
    create(backend, "name", one)
    with pytest.raises(Conflict, match="name"):
        backend.publish([], [swap("name", Head(two), Head(two))])
    assert get(backend, "name") == Head(one)


def another_record_is_a_conflict(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    head = create(backend, "name", one, status="running", step=1)
    for record in ({}, {"status": "running"}, {"status": "running", "step": 2}):
        with pytest.raises(Conflict):
            backend.publish([], [swap("name", Head(one, record), None)])
    assert get(backend, "name") == head
    backend.publish([], [swap("name", Head(one, {"step": 1, "status": "running"}), None)])
    assert get(backend, "name") is None


def a_head_that_is_there_is_not_created_again(make_backend: Factory) -> None:
    backend = make_backend()
    head = create(backend, "name", put(backend, b"1"))
    with pytest.raises(Conflict):
        backend.publish([], [swap("name", None, head)])
    assert get(backend, "name") == head


def a_head_that_is_not_there_is_not_moved(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    for new in (Head(one), None):
        with pytest.raises(Conflict):
            backend.publish([], [swap("name", Head(one), new)])
    assert list(backend.heads.list()) == []


def several_heads_move_together_or_not_at_all(make_backend: Factory) -> None:
    backend = make_backend()
    one, two = put(backend, b"1"), put(backend, b"2")
    create(backend, "a", one)
    create(backend, "c", one)
    staged = backend.blobs.stage(io.BytesIO(b"with them"))
    moves = [
        swap("a", Head(one), Head(two)),
        swap("b", None, Head(two)),
        swap("c", Head(one), None),
    ]
    with pytest.raises(Conflict):
        backend.publish([staged], [*moves, swap("d", Head(one), Head(two))])
    assert list(backend.heads.list()) == [("a", Head(one)), ("c", Head(one))]
    assert backend.blobs.info([staged.digest.hash]) == {}
    backend.publish([], moves)
    assert list(backend.heads.list()) == [("a", Head(two)), ("b", Head(two))]


def the_moves_of_one_head_follow_each_other(make_backend: Factory) -> None:
    backend = make_backend()
    heads = [Head(put(backend, b"%d" % n), {"n": n}) for n in range(3)]
    chain = [swap("name", old, new) for old, new in zip([None, *heads], heads, strict=False)]
    backend.publish([], chain)
    assert get(backend, "name") == heads[-1]
    with pytest.raises(Conflict):
        backend.publish([], [swap("name", heads[2], heads[0]), swap("name", heads[2], heads[1])])
    assert get(backend, "name") == heads[-1]


def a_refused_require_moves_no_head(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    with pytest.raises(NotFound):
        backend.publish([], [swap("name", None, Head(one))], require=[ABSENT])
    assert get(backend, "name") is None


def a_record_holds_up_to_its_limit(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    room = MAX_RECORD_BYTES - len('{"text":""}')
    full = create(backend, "full", one, text="x" * room)
    assert get(backend, "full") == full
    for text in ("x" * (room + 1), "ü" * (room // 2 + 1)):
        with pytest.raises(Invalid, match=str(MAX_RECORD_BYTES)):
            create(backend, "over", one, text=text)
        with pytest.raises(Invalid):
            backend.publish([], [swap("full", full, Head(one, {"text": text}))])
    assert list(backend.heads.list()) == [("full", full)]


def names_are_listed_by_code_point(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    for name in reversed(NAMES):
        create(backend, name, one, text=name)
    listed = [(name, Head(one, {"text": name})) for name in sorted(NAMES)]
    assert list(backend.heads.list()) == listed
    assert list(backend.heads.list(reverse=True)) == listed[::-1]


def a_prefix_is_a_prefix_and_nothing_else(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    names = [*NAMES, "a%", "a_", "a*", "A/b", "a/b/c"]
    for name in names:
        create(backend, name, one)
    for prefix in ("", "a", "a/", "a/b", "a/😀", "ä", "%", "_", "a%", "a_", "A", "\uffff", "zz"):
        found = [name for name, _ in backend.heads.list(prefix)]
        assert found == sorted(name for name in names if name.startswith(prefix))
        assert [name for name, _ in backend.heads.list(prefix, reverse=True)] == found[::-1]


def many_heads_are_listed(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    names = [f"many/{n:05}" for n in range(1201)]
    backend.publish([], [swap(name, None, Head(one)) for name in names])
    assert [name for name, _ in backend.heads.list("many/")] == names
    assert [name for name, _ in backend.heads.list("many/", reverse=True)] == names[::-1]


def heads_may_move_while_they_are_listed(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    backend.publish([], [swap(f"{n:04}", None, Head(one)) for n in range(1000)])
    seen = []
    for name, head in backend.heads.list():
        seen.append(name)
        backend.publish([], [swap(name, head, None)])
    assert seen == [f"{n:04}" for n in range(1000)]
    assert list(backend.heads.list()) == []


def a_name_that_is_not_text_is_not_found(make_backend: Factory) -> None:
    """Such names come from file names and arguments that are not UTF-8."""
    backend = make_backend()
    one = put(backend, b"1")
    create(backend, "a/b", one)
    assert get(backend, "a/\udcff") is None
    assert list(backend.heads.list("a/\udcff")) == []
    with pytest.raises(Invalid):
        create(backend, "a/\udcff", one)


def no_update_is_lost_between_threads(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    create(backend, "counter", one, n=0)
    faults: list[BaseException] = []

    def count() -> None:
        try:
            for _ in range(25):
                increment(backend)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert get(backend, "counter") == Head(one, {"n": 100})


def increment(backend: Backend) -> None:
    while True:
        old = get(backend, "counter")
        assert old is not None
        data = b"%d" % (old.record["n"] + 1)
        staged = backend.blobs.stage(io.BytesIO(data))
        assert staged.digest == Digest.of(data)
        try:
            backend.publish([staged], [swap("counter", old, Head(old.hash, {"n": int(data)}))])
            return
        except Conflict:
            discard([staged])


def listing_can_go_backwards(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    for number in range(20):
        create(backend, f"a/{number:02}", one)
    create(backend, "b", one)
    names = [name for name, _ in backend.heads.list("a/")]
    assert [name for name, _ in backend.heads.list("a/", reverse=True)] == names[::-1]


def what_contains_a_text_is_listed(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    for number in range(30):
        record = {"status": "é" if number % 10 == 3 else "ended"}
        create(backend, f"a/{number:02}", one, **record)
    wanted = {"a/03", "a/13", "a/23", "a/07"}
    for reverse in (False, True):
        listed = backend.heads.list("a/", reverse=reverse, containing=['"status":"é"', "/07"])
        names = [name for name, _ in listed]
        assert wanted <= {*names}
        assert names == sorted(names, reverse=reverse)
    assert len([*backend.heads.list("a/", containing=[""])]) == 30


def publications_in_a_group_fail_alone(make_backend: Factory) -> None:
    backend = make_backend()
    here = NodeHash(put(backend, b"here"))
    group = [
        Publication([stage(backend, b"one")], [swap("name", None, Head(here))], [here]),
        Publication([stage(backend, b"large" * 1000)], [swap("name", None, Head(here))]),
        Publication([stage(backend, b"two")], [], [ABSENT]),
        Publication([stage(backend, b"one"), stage(backend, b"three")]),
    ]
    first, conflict, absent, last = publish_group(backend, group)
    assert (first, last) == (set(), {Digest.of(b"one").hash})
    assert isinstance(conflict, Conflict)
    assert isinstance(absent, NotFound)
    stored = {Digest.of(data).hash for data in (b"here", b"one", b"three")}
    assert {hash for _, hash, _ in backend.blobs.iterate()} == stored
    assert get(backend, "name") == Head(here)
    assert publish_group(backend, []) == []


CONTRACT = checks(globals())
