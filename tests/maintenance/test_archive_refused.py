"""Damaged, truncated and forged archives: an import refuses them and changes nothing."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casfs.backend.protocols import MAX_RECORD_BYTES, Head
from casfs.digest import hash_bytes
from casfs.errors import CasfsError, Conflict, Corrupt, Failed, Invalid, NotFound
from casfs.maintenance import archive, fsck
from casfs.maintenance.import_dry_run import DryRunBackend
from casfs.store.nodes import node
from casfs.store.nodes.node import encode
from casfs.store.store import Store
from casfs.threads import threads
from tests.support.archives import ID, build, members, refused, sealed, state
from tests.support.helpers import ABSENT, LARGE, set_head
from tests.support.maintenance import content, ended, export
from tests.support.new_store import init_store

# -- what is refused -------------------------------------------------------------------------


def test_a_conflicting_head(exported: Path, target: Store) -> None:
    thread = ended(target, "something else")
    refused(target, exported, thread.name, Conflict)


@pytest.mark.parametrize("kind", ["nodes/", "blobs/"])
def test_a_flipped_byte(exported: Path, target: Store, tmp_path: Path, kind: str) -> None:
    found = members(exported)
    places = [
        place for place, (name, data) in enumerate(found) if name.startswith(kind) and len(data) > 2
    ]
    for place in random.Random(5).sample(places, 3):
        name, data = found[place]
        bad = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
        changed = [*found[:place], (name, bad), *found[place + 1 :]]
        refused(target, build(tmp_path / "bad", changed), "hash to")


def test_any_flipped_byte_of_the_file(exported: Path, target: Store, tmp_path: Path) -> None:
    """Wherever it is, either the import is refused or all of it is right."""
    data = exported.read_bytes()
    whole = len(data.rstrip(b"\0"))
    place = random.Random(11)
    refusals = 0
    before = state(target)
    for _ in range(40):
        at = place.randrange(whole)
        bad = bytearray(data)
        bad[at] ^= 1 << place.randrange(8)
        (tmp_path / "bad").write_bytes(bad)
        try:
            dry_run = Store(DryRunBackend(target.backend), target.root)
            archive._import_pass(dry_run, tmp_path / "bad", lambda *_: None, False)
        except CasfsError:
            refusals += 1
        assert state(target) == before
    assert refusals > 24  # only the padding of the tar itself does not matter


def test_a_member_under_another_name(exported: Path, target: Store, tmp_path: Path) -> None:
    found = members(exported)
    for name in (f"nodes/{ABSENT}", found[2][0]):
        changed = [found[0], (name, found[1][1]), *found[2:]]
        refused(target, sealed(tmp_path / "bad", changed))
    place = random.Random(2).randrange(1, len(found) - 1)
    for old, new in (("nodes", "blobs"), ("blobs", "nodes")):
        changed = [(name.replace(old, new) if old in name else name, data) for name, data in found]
        refused(target, build(tmp_path / "bad", changed))
        changed = [*found[:place], (found[place][0].replace(old, new), found[place][1])]
        if changed[place] != found[place]:
            refused(target, build(tmp_path / "bad", [*changed, *found[place + 1 :]]))


def test_a_member_is_gone(exported: Path, target: Store, tmp_path: Path) -> None:
    """Though it counts right: nothing may refer to what is not there."""
    found = members(exported)
    for place in random.Random(3).sample(range(1, len(found) - 1), 12):
        if not target.blobs.info([found[place][0].partition("/")[2]]):  # not built in
            left = found[:place] + found[place + 1 :]
            refused(target, build(tmp_path / "bad", left))
            refused(target, sealed(tmp_path / "bad", left))


def test_the_last_root_is_gone(exported: Path, target: Store, tmp_path: Path) -> None:
    refused(target, sealed(tmp_path / "bad", [*members(exported)[:-2], members(exported)[-1]]))


def test_a_root_that_no_head_leads_to_is_gone(source: Store, target: Store, tmp_path: Path) -> None:
    hash = source.put(b"a blob alone").hash
    export(source, tmp_path / "x", hash)
    left = [one for one in members(tmp_path / "x") if hash not in one[0]]
    before = list(target.heads.list())
    with pytest.raises(Corrupt, match=hash):
        archive.load(target, sealed(tmp_path / "bad", left))
    assert list(target.heads.list()) == before


@pytest.mark.parametrize("zstd", [False, True])
def test_a_file_that_was_cut(source: Store, target: Store, tmp_path: Path, zstd: bool) -> None:
    export(source, tmp_path / "x", ID, "work", zstd=zstd)
    data = (tmp_path / "x").read_bytes()
    end = len(data) if zstd else data.rindex(b'"members"')
    for at in [0, 1, 511, 512, 513, *random.Random(7).sample(range(end), 20)]:
        (tmp_path / "cut").write_bytes(data[:at])
        refused(target, tmp_path / "cut")


def test_an_extra_member(exported: Path, target: Store, tmp_path: Path) -> None:
    found = members(exported)
    extra = (f"blobs/{hash_bytes(b'extra')}", b"extra")
    for changed in (
        [*found[:-1], extra, found[-1]],
        [*found, extra],
        [*found, found[-1]],
        [extra, *found],
        [found[0], *found],
    ):
        refused(target, build(tmp_path / "bad", changed))


@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_count(exported: Path, target: Store, tmp_path: Path, change: int) -> None:
    found = members(exported)
    end = json.loads(found[-1][1])
    end["members"] += change
    refused(target, build(tmp_path / "bad", [*found[:-1], ("end.json", json.dumps(end).encode())]))


@pytest.mark.parametrize("end", [b"", b"[]", b"null", b"{}", b"{", b'{"members":0}'])
def test_a_bad_end(exported: Path, target: Store, tmp_path: Path, end: bytes) -> None:
    found = members(exported)
    refused(target, build(tmp_path / "bad", [*found[:-1], ("end.json", end)]))


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "nodes/../../x",
        f"nodes/../nodes/{ABSENT}",
        f"blobs/{ABSENT}/x",
        f"nodes/{ABSENT.upper()}",
        "nodes/",
        "nodes",
        f"other/{ABSENT}",
        "objects/ab/cd",
        "x" * 300,
        "café",
    ],
)
def test_members_of_other_names(exported: Path, target: Store, tmp_path: Path, name: str) -> None:
    found = members(exported)
    refused(target, sealed(tmp_path / "bad", [*found[:-1], (name, b"x"), found[-1]]))
    assert not (tmp_path / "etc").exists()


@pytest.mark.parametrize(
    "type",
    [
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
    ],
)
def test_members_that_are_no_files(
    exported: Path, target: Store, tmp_path: Path, type: bytes
) -> None:
    found = members(exported)
    with tarfile.open(tmp_path / "bad", "w") as tar:
        for name, data in found[:2]:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        member = tarfile.TarInfo(found[2][0])
        member.type, member.linkname = type, "/etc/passwd"
        tar.addfile(member)
    refused(target, tmp_path / "bad", "not a regular file")


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 10240, b"not a tar " * 1000, b"\x28\xb5\x2f\xfd" + b"?" * 100, b"PK\3\4" * 999],
)
def test_what_is_no_tar(target: Store, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad").write_bytes(data)
    refused(target, tmp_path / "bad")


def test_a_tar_of_somebody_else(target: Store, tmp_path: Path) -> None:
    refused(target, build(tmp_path / "bad", [("README", b"hello")]), "manifest")


def test_no_file_and_a_directory(target: Store, tmp_path: Path) -> None:
    refused(target, tmp_path / "nowhere", "nowhere", NotFound)
    refused(target, tmp_path, "cannot read", Failed)


# -- forged manifests and nodes --------------------------------------------------------------


def forged(path: Path, exported: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The export with another manifest, and an end that fits it."""
    found = members(exported)
    manifest = json.loads(found[0][1])
    change(manifest)
    data = json.dumps(manifest).encode()
    return sealed(path, [("manifest.json", data), *found[1:]])


def thread_head(manifest: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in manifest["heads"] if one["name"].startswith("threads/"))


def in_record(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: thread_head(manifest)["record"].update({key: value})


def in_head(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: thread_head(manifest).update({key: value})


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "running": in_record("status", "running"),
    "a status of no kind": in_record("status", "well"),
    "no status": lambda manifest: thread_head(manifest)["record"].pop("status"),
    "a start that is not in it": in_record("start", ABSENT),
    "an attempt that is not in it": in_record("attempts", [ABSENT]),
    "a record that is too long": in_record("reason", "x" * MAX_RECORD_BYTES),
    "a number of no text": in_record("updatedAt", 1e20),
    "a time that is a text": in_record("updatedAt", "now"),
    "a head to what is not in it": in_head("hash", ABSENT),
    "a head to no hash": in_head("hash", "abc"),
    "a head to a number": in_head("hash", 5),
    "a head to a blob": in_head("hash", hash_bytes(LARGE)),
    "a record that is a list": in_head("record", []),
    "a name with dots": in_head("name", "threads/../../x"),
    "no ULID": in_head("name", "threads/short"),
    "a name in no space": in_head("name", "actions/x"),
    "a name of the workspaces": in_head("name", "workspaces/x"),
    "a dot as an id": in_head("name", "checkpoints/work/.."),
    "a workflow that is a thread": in_head("name", "workflows/x"),
    "a name that is a number": in_head("name", 5),
    "a name with a line end": in_head("name", f"threads/{ID}\n"),
    "more than a head has": in_head("more", 1),
    "a head twice": lambda manifest: manifest["heads"].append(thread_head(manifest)),
    "a head that is null": lambda manifest: manifest["heads"].append(None),
    "no heads": lambda manifest: manifest.pop("heads"),
    "heads that are none": lambda manifest: manifest.update(heads={"a": 1}),
    "no roots": lambda manifest: manifest.pop("roots"),
    "roots that are none": lambda manifest: manifest.update(roots=["x"]),
    "another form": lambda manifest: manifest.update(format="casfs export 99"),
    "no form": lambda manifest: manifest.pop("format"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_manifest(exported: Path, target: Store, tmp_path: Path, forgery: str) -> None:
    refused(target, forged(tmp_path / "bad", exported, FORGERIES[forgery]))


@pytest.mark.parametrize("data", [b"[]", b"null", b"{", b"\xff", b'"casfs export 1"'])
def test_a_manifest_that_is_none(
    exported: Path, target: Store, tmp_path: Path, data: bytes
) -> None:
    refused(target, sealed(tmp_path / "bad", [("manifest.json", data), *members(exported)[1:]]))


def test_a_manifest_that_somebody_touched(exported: Path, target: Store, tmp_path: Path) -> None:
    """Even where it reads well: its hash stands in the end."""
    found = members(exported)
    touched = found[0][1].replace(b'"updatedAt":17', b'"updatedAt":18')
    assert touched != found[0][1]
    refused(
        target,
        build(tmp_path / "bad", [("manifest.json", touched), *found[1:]]),
        "end.json does not match",
    )


def test_a_forged_manifest_that_says_the_truth(
    exported: Path, target: Store, tmp_path: Path
) -> None:
    """What the forgeries above have in common does not refuse them."""
    archive.load(target, forged(tmp_path / "good", exported, lambda manifest: None))
    assert threads.get(target, ID).status == "ended"


def bad_nodes(store: Store) -> list[bytes]:
    """Bytes that are no nodes of a store, each under its right name."""
    type = store.registry.head("content").hash
    meta = store.registry.head("schema").hash
    good = encode(type, {"text": "t", "artifacts": []})
    return [
        good.replace(b'"t"', b"5"),
        good.replace(b'"t"', b'"t" '),
        good.replace(b"[]", b'["' + ABSENT.encode() + b'"]'),
        good.replace(type.encode(), ABSENT.encode()),
        good.replace(type.encode(), hash_bytes(LARGE).encode()),
        good.replace(b'"' + type.encode() + b'"', b"[]"),
        good.replace(b'"' + type.encode() + b'"', b"5"),
        good.replace(type.encode(), b"x"),
        good.replace(type.encode(), meta.encode()),
        good.replace(type.encode(), b"schema"),
        b'{"payload":{"$id":"x"},"type":[]}',
        b'{"payload":5,"type":"' + meta.encode() + b'"}',
        b'{"payload":null,"type":"schema"}',
        b"[" * 5000,
        b"null",
        b"[]",
        b"",
        b"\xff",
    ]


def test_bad_nodes(exported: Path, source: Store, target: Store, tmp_path: Path) -> None:
    found = members(exported)
    for data in bad_nodes(source):
        name = f"nodes/{hash_bytes(data)}"
        refused(target, sealed(tmp_path / "bad", [*found[:-1], (name, data), found[-1]]), "nodes/")


def test_blobs_that_look_like_bad_nodes_are_welcome(
    source: Store, target: Store, tmp_path: Path
) -> None:
    hashes = [source.put(data).hash for data in bad_nodes(source)]
    export(source, tmp_path / "x", *hashes)
    archive.load(target, tmp_path / "x")
    assert {hash: target.blobs.get(hash) for hash in hashes} == {
        hash: source.blobs.get(hash) for hash in hashes
    }


def test_a_head_of_the_target_is_never_moved(source: Store, target: Store, exported: Path) -> None:
    workflow = target.put_node(
        "workflow", {"name": "demo", "description": "", "roles": {}, "moderator": []}
    ).hash
    mine = set_head(target, "workflows/demo", workflow)
    archive.load(target, exported)
    assert target.heads.get("workflows/demo") == mine
    assert isinstance(mine, Head)


def test_put_import_and_fsck_have_one_limit_for_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails before: put took a node that an import then refused."""
    with init_store(tmp_path / "a") as store, init_store(tmp_path / "b") as other:
        thread = ended(store, "x" * 5000)
        export(store, tmp_path / "a.tar", thread.id)
        monkeypatch.setattr(node, "MAX_NODE_BYTES", 4000)
        with pytest.raises(Corrupt, match="too many for a node"):
            archive.load(other, tmp_path / "a.tar")
        with pytest.raises(Invalid, match="too many for a node"):
            content(other, "x" * 5000)
        faults = fsck.check(store, quarantine=False).faults
        assert any("too many for a node" in fault.message for fault in faults)
