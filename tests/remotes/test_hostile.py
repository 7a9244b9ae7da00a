"""A remote may hold anything: nothing of it is believed."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from casfs.backend.protocols import FILE_MIN_BYTES
from casfs.digest import hash_bytes
from casfs.errors import Conflict, Corrupt, Refused
from casfs.packs.reader import open_pack
from casfs.packs.writer import PackWriter
from casfs.remotes import log
from casfs.remotes.log import Pack
from casfs.remotes.remote import Settings
from casfs.store.nodes import node
from casfs.system.clock import now_ms
from tests.support.helpers import blobs, private_files
from tests.support.remotes import Site
from tests.support.thread_example import make_thread

Sites = Callable[[Settings], Site]


def place(one: Site) -> Path:
    return Path(urlsplit(one.settings.url).path)


def planted(one: Site, **changes: Any) -> None:
    """Appends an entry that a hostile writer made."""
    with one.remote() as remote:
        remote.catch_up()
        remote.append(lambda entry: entry.update(changes))


def pack_of(
    one: Site, members: list[tuple[bytes, str | None]], kind: str = "nodes"
) -> dict[str, Any]:
    """A pack of bytes with types, uploaded; the `packs` of an entry."""
    path = one.root.parent / "hostile.pack"
    with path.open("wb") as out:
        writer = PackWriter(out)
        for data, type in members:
            writer.add(hash_bytes(data), data, type)
        name = writer.finish()
    data = open_pack(path).index.data
    one.settings.storage().put(log.pack_key(name), path)
    size = path.stat().st_size
    return {name: Pack(name, kind, size, size - 56 - len(data), data).encode()}


@pytest.fixture
def pair(directory: Settings, sites: Sites) -> tuple[Site, Site]:
    here, there = sites(directory), sites(directory)
    noise = random.Random(3)
    here.checkpoint("app", {"a": noise.randbytes(5000), "b": {"c": noise.randbytes(3000)}})
    here.push("app")
    return here, there


def test_a_damaged_byte_is_never_served(pair: tuple[Site, Site], sites: Sites) -> None:
    """A pull names the damage, or nothing that it reads is damaged."""
    here, there = pair
    (name,) = here.heads()
    found = 0
    for path in (place(here) / "packs").iterdir():
        whole = path.read_bytes()
        path.chmod(0o600)
        for at in range(16, len(whole), len(whole) // 25):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
            try:
                there.pull()
            except Corrupt:
                found += 1
                assert there.heads() == {}
            else:
                assert there.contents(name) == here.contents(name)
                there = sites(here.settings)
        path.write_bytes(whole)
    assert found > 25


def test_a_cut_pack_is_damaged(pair: tuple[Site, Site]) -> None:
    here, there = pair
    for path in (place(here) / "packs").iterdir():
        whole = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(whole[:100])
        with pytest.raises(Corrupt):
            there.pull()
        path.write_bytes(whole)
    assert len(there.pull().refs) == 1


LONG = {"a": "x" * 5000}
REF = {"hash": "ab" * 32, "record": {}, "previous": None, "size": None}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"no zstd", log.encode({}), log.encode({"id": "x"}),
        log.encode({**log.new_entry("0" * 32, None), "refs": {"a\x07b": REF}}),
        log.encode({**log.new_entry("0" * 32, None), "refs": {"x": {**REF, "hash": "../.."}}}),
        log.encode({**log.new_entry("0" * 32, None), "refs": {"x": {**REF, "record": LONG}}}),
        log.encode({**log.new_entry("0" * 32, None), "packs": {"../../etc/x": {}}}),
        log.encode({**log.new_entry("0" * 32, None), "packs": {"ab" * 32: {"kind": "nodes"}}}),
        log.encode({**log.new_entry("0" * 32, "1" * 32)}),
    ],
)  # fmt: skip
def test_a_damaged_entry_is_named(directory: Settings, sites: Sites, data: bytes) -> None:
    here = sites(directory)
    assert here.settings.storage().put_if_absent(log.key(1), data)
    with pytest.raises(Corrupt, match="log"):
        here.pull()
    assert here.heads() == {}


@pytest.mark.parametrize("index", [b"", b"\xff" * 16, b"\0" * 16])
def test_an_index_that_is_none(directory: Settings, sites: Sites, index: bytes) -> None:
    here = sites(directory)
    name = hash_bytes(index)
    planted_pack = {name: Pack(name, "nodes", 100 + len(index), 44, index).encode()}
    entry = {**log.new_entry("0" * 32, None), "packs": planted_pack}
    assert here.settings.storage().put_if_absent(log.key(1), log.encode(entry))
    for _ in range(2):
        try:
            here.pull()
        except Corrupt:
            continue
        assert index == b"\0" * 16  # an index of nothing is sound


def test_refs_that_no_store_has_are_skipped(pair: tuple[Site, Site]) -> None:
    here, there = pair
    known = next(iter(here.refs()))
    at = now_ms() + 10 * 86_400_000
    old = here.refs()[known]
    refs = {
        "workspaces/0123456789abcdef": REF,
        "checkpoints/../../etc/20261122T022727.907Z-7bf0517f": old,
        "checkpoints/x/20261122T022727.907Z-7bf0517f": {**old, "record": {"root": 1}},
        "threads/01JD0000000000000000000000": {**REF, "record": {"status": "running"}},
        "schemas/UPPER": REF,
        "future/kind": REF,
        "checkpoints/late/" + known.rpartition("/")[2]: {
            **old, "record": {**old["record"], "createdAt": at}
        },
    }  # fmt: skip
    planted(here, refs=refs)
    done = there.pull()
    assert (done.refs, sorted(done.skipped)) == ([known], sorted(refs))
    assert set(there.heads()) == {known}
    with pytest.raises(Corrupt, match="late"):
        there.pull("late")


def test_a_ref_that_contradicts_its_node(pair: tuple[Site, Site]) -> None:
    here, there = pair
    known = next(iter(here.refs()))
    other = known.replace("/app/", "/web/")
    planted(here, refs={other: here.refs()[known]})
    with pytest.raises(Corrupt, match="not that of its node"):
        there.pull("web")
    planted(
        here, refs={other: {**here.refs()[known], "hash": here.store.registry.current("content")}}
    )
    with pytest.raises(Corrupt):
        there.pull("web")
    assert there.heads() == {}


def test_content_that_is_missing_is_named(pair: tuple[Site, Site]) -> None:
    here, there = pair
    known = next(iter(here.refs()))
    planted(here, refs={known: {**here.refs()[known], "hash": "ab" * 32}})
    with pytest.raises(Corrupt, match="lacks abab"):
        there.pull()


def test_nodes_that_are_none(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    content = here.store.registry.current("content")
    ref = make_thread(here.store, status="suspended")
    here.push(ref.id)
    for payload in (
        {"text": 5, "artifacts": []},
        {"text": "x", "artifacts": ["ab" * 32]},
        {"text": "x"},
        [],
        {"text": "x", "artifacts": [], "a": {"b": 1.5}},
    ):
        data = node.encode(content, payload)
        record = {**here.refs()[ref.name]["record"], "compact": hash_bytes(data)}
        planted(
            here,
            packs=pack_of(here, [(data, content)]),
            refs={ref.name: {**here.refs()[ref.name], "record": record}},
        )
        with pytest.raises(Corrupt):
            there.pull()
        assert there.heads() == {}
        assert hash_bytes(data) not in blobs(there.store)
    spaced = json.dumps({"payload": {"text": "x", "artifacts": []}, "type": content}).encode()
    record = {**here.refs()[ref.name]["record"], "compact": hash_bytes(spaced)}
    planted(
        here,
        packs=pack_of(here, [(spaced, content)]),
        refs={ref.name: {**here.refs()[ref.name], "record": record}},
    )
    with pytest.raises(Corrupt, match="canonical"):
        there.pull()


def test_another_format_is_refused(directory: Settings, sites: Sites) -> None:
    here = sites(directory)
    directory.storage().put(log.IDENTITY, b'{"format":"casfs remote 2","id":""}')
    with pytest.raises(Conflict, match="casfs remote 1"):
        here.pull()


def test_records_of_other_types_than_expected(pair: tuple[Site, Site]) -> None:
    here, _ = pair
    ref = make_thread(here.store, status="suspended")
    here.push(ref.id)
    value = here.refs()[ref.name]
    planted(here, refs={ref.name: {**value, "record": {"updatedAt": "now"}}})
    assert here.push(ref.id).refs == [ref.name]
    planted(here, refs={"threads/other": {**value, "record": {"parent": []}}})
    assert here.pull("app").unchanged == 1


@pytest.mark.parametrize("kept", [0, 1])
def test_a_log_that_was_rolled_back_is_refused(pair: tuple[Site, Site], kept: int) -> None:
    """`kept`: entries that stay; the last is replaced then."""
    here, there = pair
    here.checkpoint("app", {"a": b"2"})
    here.push("app")
    there.pull()
    last = place(here) / log.key(2)
    last.chmod(0o600)
    last.unlink()
    if kept:
        with here.remote() as remote:
            first = remote.entry(1)
        assert first is not None
        last.write_bytes(log.encode(log.new_entry("0" * 32, first["id"])))
    for _ in range(2):
        with pytest.raises(Refused, match=r"entry 2 was [0-9a-f]{8}.*--accept-rollback"):
            there.pull()
    with there.remote() as remote:
        remote.catch_up(accept_rollback=True)
    assert there.pull().refs == []


def test_a_lazy_pull_checks_the_sizes_of_members(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    content = here.store.registry.current("content")
    blob = b"x" * 5000
    ref = make_thread(here.store, status="suspended")
    here.push(ref.id)
    data = node.encode(content, {"text": "x", "artifacts": [hash_bytes(blob)]})
    packs = pack_of(here, [(blob, None)], "blobs") | pack_of(here, [(data, content)])
    (name,) = (name for name, one in packs.items() if one["kind"] == "blobs")
    index = bytearray(base64.b64decode(packs[name]["index"]))
    at = index.index(bytes.fromhex(hash_bytes(blob))) + 32
    index[at : at + 8] = (1 << 40).to_bytes(8, "little")
    lying = hash_bytes(bytes(index))
    packs[lying] = {**packs.pop(name), "index": base64.b64encode(index).decode()}
    pack = here.settings.storage().get(log.pack_key(name))
    here.settings.storage().put(log.pack_key(lying), pack)
    record = {**here.refs()[ref.name]["record"], "compact": hash_bytes(data)}
    planted(here, packs=packs, refs={ref.name: {**here.refs()[ref.name], "record": record}})
    for lazy in (True, False):
        with pytest.raises(Corrupt, match=r"frame"):
            there.pull(lazy=lazy)
        assert there.heads() == {}


def chain(length: int) -> list[tuple[bytes, str]]:
    """Bytes, each of which has the next one as its type, and the last the first."""
    types = [b"type %d" % number for number in range(length)]
    return [(data, hash_bytes(types[(i + 1) % length])) for i, data in enumerate(types)]


@pytest.mark.parametrize("length", [2, 2000])
def test_types_whose_types_have_no_end(directory: Settings, sites: Sites, length: int) -> None:
    here, there = sites(directory), sites(directory)
    ref = make_thread(here.store, status="suspended")
    here.push(ref.id)
    types = chain(length)
    data = node.encode(hash_bytes(types[0][0]), {"text": "x", "artifacts": []})
    record = {**here.refs()[ref.name]["record"], "compact": hash_bytes(data)}
    planted(
        here,
        packs=pack_of(here, [*types, (data, hash_bytes(types[0][0]))]),
        refs={ref.name: {**here.refs()[ref.name], "record": record}},
    )
    with pytest.raises(Corrupt, match="has a type that is not the meta-schema"):
        there.pull()
    assert there.heads() == {}


def test_what_was_staged_before_a_damaged_blob_is_discarded(
    directory: Settings, sites: Sites
) -> None:
    here, there = sites(directory), sites(directory)
    noise = random.Random(5)
    here.checkpoint("app", {name: noise.randbytes(2 * FILE_MIN_BYTES) for name in "ab"})
    here.push("app")
    path = max((place(here) / "packs").iterdir(), key=lambda one: one.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) * 7 // 8] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(Corrupt):
        there.pull()
    assert private_files(there.root) == []
