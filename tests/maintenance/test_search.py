"""Full-text search: what was said is found, with its place in the mount."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.backend.derived import repairable
from casfs.backend.protocols import Heads, Swap
from casfs.maintenance import search as search_module
from casfs.maintenance.gc import collect
from casfs.maintenance.search import Hit, Index
from casfs.store.store import Store
from tests.support.helpers import ABSENT, put_tree
from tests.support.maintenance import NOTE, SECOND, age, content, ended, fork, reopened, sql
from tests.support.thread_example import Example, make_thread

Find = Callable[..., list[Hit]]


@pytest.fixture
def find(disk_store: Store) -> Find:
    """One search as the command line makes it: the index is opened for it alone."""

    def search(text: str, **options: object) -> list[Hit]:
        with Index(disk_store) as index:
            return list(index.search(text, **options))  # type: ignore[arg-type]  # handed through

    return search


def index_file(store: Store) -> Path:
    return store.root / "search.db"


def said(thread: Example, step: int) -> str:
    return str(thread.store.node(thread.steps[step]).payload["content"])


# -- what is found ------------------------------------------------------------------------


def test_the_output_of_a_step(disk_store: Store, find: Find) -> None:
    thread = ended(disk_store, "The parser drops its last line.", "Nothing of note.")
    (hit,) = find("parser drops", type="content", thread=thread.id)
    assert hit == Hit(
        said(thread, 0),
        "content",
        f"threads/{thread.id}/steps/000001-planner/output.md",
        "The parser drops its last line.",
        thread.id,
        1,
        "planner",
    )


def test_all_words_must_be_there_in_any_order_and_case(disk_store: Store, find: Find) -> None:
    ended(disk_store, "alpha Beta", "alpha gamma")
    assert [hit.step for hit in find("BETA alpha")] == [1]
    assert [hit.step for hit in find("alpha")] == [1, 2]
    assert find("alpha delta") == []
    assert find("alph") == []


def test_the_best_match_comes_first(disk_store: Store, find: Find) -> None:
    ended(disk_store, "word " + "filler " * 200, "word word word")
    assert [hit.step for hit in find("word")] == [2, 1]


def test_a_node_that_is_no_output_is_found_under_nodes(disk_store: Store, find: Find) -> None:
    hash = content(disk_store, "said by nobody")
    assert find("nobody") == [Hit(hash, "content", f"nodes/{hash}/", "said by nobody")]


def test_every_string_of_a_payload_counts(disk_store: Store, find: Find) -> None:
    agent = disk_store.put_node(
        "agent",
        {"package": "command", "version": "", "config": {"deep": [{"er": "needle"}, ABSENT]}},
    ).hash
    assert [hit.hash for hit in find("needle")] == [agent]
    assert find(ABSENT) == []
    assert find("deep") == []  # a key is not said


def test_directories_and_schemas_are_left_out(disk_store: Store, find: Find) -> None:
    put_tree(disk_store, {"haystack.txt": b"haystack in a blob"})
    with disk_store.batch() as batch:
        batch.put_schema({**NOTE, "description": "haystack in a schema"})
    assert find("haystack") == []


def test_one_type_only(disk_store: Store, find: Find) -> None:
    make_thread(disk_store)
    assert {hit.type for hit in find("plan")} == {"role"}
    assert find("plan", type="content") == []
    assert find("plan", type="nonsense") == []


def test_one_thread_only(disk_store: Store, find: Find) -> None:
    one = ended(disk_store, "shared", "shared words")
    content(disk_store, "shared by nobody")
    head = disk_store.heads.get("workflows/demo")
    disk_store.backend.publish([], [Swap("workflows/demo", head, None)])
    two = ended(disk_store, "not at all", "shared too", id=SECOND)
    assert one.start == two.start
    assert {hit.step for hit in find("shared", thread=one.id)} == {1, 2}
    assert [hit.path for hit in find("shared", thread=two.id)] == [
        f"threads/{two.id}/steps/000002-planner/output.md"
    ]
    assert find("shared", thread="01JD0000000000000000000009") == []


def test_the_same_words_in_two_steps_are_two_places(disk_store: Store, find: Find) -> None:
    thread = ended(disk_store, "again", "between", "again")
    assert [hit.path for hit in find("again")] == [
        f"threads/{thread.id}/steps/{index:06}-planner/output.md" for index in (1, 3)
    ]


def test_forks_share_what_came_before(disk_store: Store, find: Find) -> None:
    thread = ended(disk_store, "early", "late")
    fork(thread, SECOND, thread.steps[0])
    assert [(hit.thread, hit.step) for hit in find("early")] == [(thread.id, 1), (SECOND, 1)]
    assert [(hit.thread, hit.step) for hit in find("late")] == [(thread.id, 2)]


def test_a_thread_that_cannot_be_read_hides_no_other(disk_store: Store, find: Find) -> None:
    thread = ended(disk_store, "one", "two")
    fork(thread, SECOND, thread.steps[0])
    sql(disk_store, "DELETE FROM blobs WHERE hash = ?", bytes.fromhex(thread.steps[1]))
    with reopened(disk_store) as store, Index(store) as index:
        assert [hit.thread for hit in index.search("one")] == [SECOND]


def test_a_dropped_threads_words_are_nodes_only(disk_store: Store, find: Find) -> None:
    thread = ended(disk_store, "gone")
    disk_store.backend.publish([], [Swap(thread.name, thread.head, None)])
    assert [hit.path for hit in find("gone")] == [f"nodes/{said(thread, 0)}/"]


def test_a_search_reads_the_heads_that_have_moved(
    disk_store: Store, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = ended(disk_store, "early")
    for number in range(50):
        fork(thread, f"01JD00000000000000000001{number:02}", thread.steps[0])
    assert len(find("early")) == 51
    listed = Counter[str]()
    original = type(disk_store.heads).list

    def counting(self: Heads, prefix: str = "", *, reverse: bool = False) -> object:
        listed[prefix] += 1
        return original(self, prefix, reverse=reverse)

    monkeypatch.setattr(type(disk_store.heads), "list", counting)
    fork(thread, SECOND, thread.steps[0])
    assert len(find("early")) == 52
    assert listed["threads/"] == 0


def test_where_moves_are_lost_all_heads_are_read(disk_store: Store, find: Find) -> None:
    thread = ended(disk_store, "early")
    assert len(find("early")) == 1
    fork(thread, SECOND, thread.steps[0])
    sql(disk_store, "DELETE FROM moves WHERE seq < (SELECT max(seq) FROM moves)")
    fork(thread, "01JD0000000000000000000099", thread.steps[0])
    assert len(find("early")) == 3


def test_the_limit_counts_places(disk_store: Store, find: Find) -> None:
    thread = ended(disk_store, *[f"word {number}" for number in range(5)])
    fork(thread, SECOND, thread.steps[-1])
    assert len(find("word")) == 10
    for limit in (1, 3, 10, 11):
        assert len(find("word", limit=limit)) == min(limit, 10)


def test_a_snippet_is_the_line_with_the_words(disk_store: Store, find: Find) -> None:
    content(disk_store, "needles " * 100 + "\n\n\tOne Néedle\there\n" + "after " * 100)
    (hit,) = find("needle here")
    assert hit.snippet == "One Néedle here"
    content(disk_store, "a/_unlike.txt\nsrc/" + "x" * 100 + "_like_this.txt")
    (hit,) = find("like")
    assert hit.snippet.endswith("x_like_this.txt")
    assert len(hit.snippet) <= 2 * search_module.SNIPPET_CONTEXT_CHARS


# -- what people type ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Größe und Gewicht", "größe"),
        ("Größe und Gewicht", "GRÖSSE"[:3] + "ße"),
        ("café", "cafe\u0301"),
        ("cafés", "cafe\u0301s"),
        ("cafe\u0301s", "cafés"),
        ("naïve", "naive"),
        ("Дом на холме", "ДОМ"),
        ("数据 库", "数据"),
        ("हिन्दी में", "हिन्दी"),
        ("snake_case_name", "snake_case_name"),
        ("snake_case_name", "case"),
        ("a.b(c)", "a.b(c)"),
        ("it's here", "it's"),
        ("C++ and 100%", "C++ 100%"),
        ("x\U0001f600y word", "word"),
    ],
)
def test_words_of_all_kinds(disk_store: Store, find: Find, text: str, query: str) -> None:
    hash = content(disk_store, text)
    assert [hit.hash for hit in find(query)] == [hash]


@pytest.mark.parametrize("query", ["", " ", "-", '"', "***", "()", "\0", "\udcff", "😀"])
def test_a_query_without_words_finds_nothing(disk_store: Store, find: Find, query: str) -> None:
    content(disk_store, "some words")
    assert find(query) == []


@pytest.mark.parametrize(
    "query",
    [
        '"words',
        "wor*",
        "NEAR(some words)",
        "some AND",
        "NOT words",
        "text:words",
        "^some",
        "some OR nothing",
        "words)",
        "{text} : words",
        "'; DROP TABLE docs; --",
        "some + words",
    ],
)
def test_query_syntax_is_words(disk_store: Store, find: Find, query: str) -> None:
    content(disk_store, "some words")
    everything = content(disk_store, f"some words and also {query}")
    assert everything in {hit.hash for hit in find(query)}
    assert find("some words")


@given(st.text(max_size=40))
@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_no_query_is_an_error(disk_store: Store, query: str) -> None:
    with Index(disk_store) as index:
        list(index.search(query, limit=3))


def test_text_with_odd_characters_is_indexed(disk_store: Store, find: Find) -> None:
    hash = content(disk_store, "zero\0width \ufeff and \u2028 lines \ufffd needle")
    assert [hit.hash for hit in find("needle")] == [hash]


# -- keeping up ---------------------------------------------------------------------------


def test_what_is_put_is_found_by_the_next_search(disk_store: Store) -> None:
    with Index(disk_store) as index:
        for number in range(3):
            hash = content(disk_store, f"fresh {number}")
            assert hash in {hit.hash for hit in index.search("fresh")}
            assert len(list(index.search("fresh"))) == number + 1


def test_what_another_process_put_is_found(disk_store: Store, find: Find) -> None:
    content(disk_store, "mine")
    assert find("theirs") == []
    with reopened(disk_store) as other:
        hash = content(other, "theirs")
    assert [hit.hash for hit in find("theirs")] == [hash]


def test_nothing_is_indexed_twice(disk_store: Store) -> None:
    ended(disk_store, "one", "two")
    with Index(disk_store) as index:
        assert index.catch_up() > 0
        assert index.catch_up() == 0
    with Index(disk_store) as index:
        assert index.catch_up() == 0
        content(disk_store, "three")
        assert index.catch_up() == 1


def test_a_long_store_is_indexed_in_batches(
    disk_store: Store, find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "INDEX_BATCH_BYTES", 60)
    monkeypatch.setattr(search_module, "READ_NODES", 7)
    with disk_store.batch() as batch:
        for number in range(50):
            batch.put_node("content", {"text": f"number n{number}", "artifacts": []})
    assert len(find("number")) == 50
    assert len(find("n49")) == 1


def test_deleting_the_index_loses_nothing(disk_store: Store, find: Find) -> None:
    ended(disk_store, "one", "two")
    before = find("one")
    for name in ("search.db", "search.db-wal", "search.db-shm"):
        index_file(disk_store).with_name(name).unlink(missing_ok=True)
    assert find("one") == before != []


@pytest.mark.parametrize("damage", ["no database", "cut", "a page"])
def test_a_damaged_index_is_made_again(disk_store: Store, find: Find, damage: str) -> None:
    for number in range(300):
        content(disk_store, f"words {number} " + "more " * 30)
    before = find("words 7")
    file = index_file(disk_store)
    data = file.read_bytes()
    pages = len(data) // 4096
    assert pages > 8
    bad = {
        "no database": b"not SQLite " * 1000,
        "cut": data[: 4096 * (pages // 2)],
        "a page": data[:4096] + b"\xa5" * 4096 * (pages - 1),
    }[damage]
    file.write_bytes(bad)
    assert find("words 7") == before != []
    content(disk_store, "words after it")
    assert len(find("words")) == 100


def test_what_gc_took_is_not_found(disk_store: Store, find: Find) -> None:
    thread = ended(disk_store, "kept words")
    content(disk_store, "garbage words")
    assert len(find("words")) == 2
    age(disk_store)
    collect(disk_store)
    assert [hit.thread for hit in find("words")] == [thread.id]


def test_what_comes_after_gc_took_the_last_is_found(disk_store: Store, find: Find) -> None:
    """A position in the order of arrival must not be given twice."""
    content(disk_store, "doomed words")
    assert len(find("doomed")) == 1
    age(disk_store)
    collect(disk_store)
    new = content(disk_store, "new words")
    assert [hit.hash for hit in find("words")] == [new]
    assert find("doomed") == []


def test_what_comes_back_is_found_once(disk_store: Store, find: Find) -> None:
    content(disk_store, "lost and found")
    assert len(find("found")) == 1
    age(disk_store)
    collect(disk_store)
    assert find("found") == []
    hash = content(disk_store, "lost and found")
    assert [hit.hash for hit in find("found")] == [hash]


def test_a_step_that_comes_back_is_found_once(disk_store: Store, find: Find) -> None:
    thread = ended(disk_store, "lost and found")
    find("found")
    chain = [thread.steps[0], said(thread, 0)]
    kept = {hash: disk_store.get(hash) for hash in chain}
    for hash in chain:
        repairable(disk_store.blobs).quarantine(hash)
    with disk_store.batch() as batch:
        for hash in chain[::-1]:
            batch.put_encoded(kept[hash])
    assert [hit.step for hit in find("found")] == [1]


def test_bytes_that_become_a_node_are_found(disk_store: Store, find: Find) -> None:
    with Store.memory() as other:
        hash = content(other, "late bloomer")
        data = other.get(hash)
    disk_store.put(data)
    assert find("bloomer") == []
    with disk_store.batch() as batch:
        batch.put_encoded(data)
    assert [hit.hash for hit in find("bloomer")] == [hash]


def test_a_damaged_node_is_left_out(disk_store: Store, find: Find) -> None:
    bad, good = content(disk_store, "bad words"), content(disk_store, "good words")
    sql(disk_store, "UPDATE blobs SET data = x'00' WHERE hash = ?", bytes.fromhex(bad))
    assert [hit.hash for hit in find("words")] == [good]


def _search(root: Path, start: object, found: object) -> None:
    with Store.open(root) as store:
        start.wait()  # type: ignore[attr-defined]  # a barrier of multiprocessing
        with Index(store) as index:
            found.put(len(list(index.search("words", limit=500))))  # type: ignore[attr-defined]  # a queue


def test_several_processes_search_at_once(disk_store: Store) -> None:
    for number in range(200):
        content(disk_store, f"words {number}")
    context = multiprocessing.get_context("spawn")
    start, found = context.Barrier(2), context.Queue()
    arguments = (disk_store.root, start, found)
    running = [context.Process(target=_search, args=arguments) for _ in range(2)]
    for process in running:
        process.start()
    assert [found.get(timeout=60) for _ in running] == [200] * 2
    for process in running:
        process.join()
        process.close()
    with Index(disk_store) as index:
        assert index.catch_up() == 0
        assert len(list(index.search("words", limit=500))) == 200


def test_indexing_says_how_far_it_is(disk_store: Store) -> None:
    blob = b"line\n" * 1000
    disk_store.put(blob)
    content(disk_store, "said")
    shown: list[tuple[int, int]] = []
    with Index(disk_store, lambda done, size: shown.append((done, size))) as index:
        assert [hit.type for hit in index.search("said")] == ["content"]
    assert shown[-1][0] == len([*disk_store.blobs.iterate(0)])
    assert shown[-1][1] > len(blob)
    assert shown == sorted(shown)
