"""Large blobs that changed a little: a push sends changed blocks, and what is sent is whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from casfs.backend.block_maps import MIN_BYTES
from casfs.backend.derived import total_stored
from casfs.digest import Digest
from casfs.errors import Corrupt
from casfs.maintenance import fsck, gc
from casfs.maintenance import purge as purges
from casfs.packs.layout import BLOCK_BYTES, FrameRef
from casfs.packs.reader import open_pack
from casfs.packs.writer import PackWriter
from casfs.remotes import log, push
from casfs.remotes.log import Pack
from casfs.remotes.remote import Settings
from casfs.store.tombstones import Tombstone
from tests.remotes.conftest import Sites
from tests.remotes.test_remote_gc import age as age_files
from tests.remotes.test_remote_gc import check as remote_fsck
from tests.remotes.test_remote_gc import collect, forget
from tests.support.block_maps import FIRST, changed, is_mapped, put_change
from tests.support.maintenance import age, put_checkpoint
from tests.support.packs import freeze
from tests.support.remotes import Site, remote_bytes


def versions(count: int) -> list[bytes]:
    made = [FIRST]
    for number in range(1, count):
        made.append(changed(made[-1], 11 * number, seed=number))
    return made


def record(site: Site, version: bytes, at: int) -> str:
    """A checkpoint of a large file, stored as its differences from the version before."""
    name = site.checkpoint("app", {"large": version, "count": b"%d" % at})
    assert at == 0 or is_mapped(site.store, Digest.of(version).hash)
    return name


def push_versions(site: Site, count: int) -> list[str]:
    """Records and pushes versions one by one; returns the names of their checkpoints."""
    names = []
    for number, version in enumerate(versions(count)):
        names.append(record(site, version, number))
        site.push("app")
    return names


def stored(site: Site) -> int:
    return total_stored(site.store.blobs).bytes


def test_only_changed_blocks_travel(anywhere: Settings, sites: Sites) -> None:
    here, there = sites(anywhere), sites(anywhere)
    for number, version in enumerate(versions(4)):
        name = record(here, version, number)
        pushed = here.push("app")
        assert pushed.refs == [name]
        assert len(FIRST) < pushed.sent if number == 0 else pushed.sent < 2 * BLOCK_BYTES
        if number % 2:
            there.pull()
        assert here.push("app").packs == 0
    assert there.heads("checkpoints/") == here.heads("checkpoints/")
    assert there.contents(name) == here.contents(name)
    # Not whole there either, nor in a clone that takes all at once.
    clone = sites(anywhere)
    clone.pull()
    for site in (there, clone):
        assert site.contents(name) == here.contents(name)
        assert stored(site) < len(FIRST) + 5 * BLOCK_BYTES
        assert fsck.check(site.store).faults == []
    assert remote_fsck(here).faults == []


def test_versions_that_are_pushed_at_once_share_their_blocks(
    directory: Settings, sites: Sites
) -> None:
    here, there = sites(directory), sites(directory)
    names = [record(here, version, number) for number, version in enumerate(versions(5))]
    assert here.push("app").sent < len(FIRST) + 7 * BLOCK_BYTES
    there.pull()
    for name in names:
        assert there.contents(name) == here.contents(name)
    assert stored(there) < len(FIRST) + 7 * BLOCK_BYTES


def test_no_version_travels_that_was_not_pushed(
    directory: Settings, sites: Sites, tmp_path: Path
) -> None:
    here, there = sites(directory), sites(directory)
    first = here.store.put(FIRST).hash
    second_version = changed(FIRST, 3)
    second = put_change(here.store, second_version, first)
    third_version = changed(second_version, 3, 4, seed=8)
    put_change(here.store, third_version, second)
    put_checkpoint(here.store, {"large": third_version})
    here.push("work")
    there.pull()
    assert there.store.get(Digest.of(third_version).hash) == third_version
    sent = remote_bytes(tmp_path / "remote")
    for version in (FIRST, second_version):
        assert version[3 * BLOCK_BYTES : 4 * BLOCK_BYTES] not in sent


def test_a_lazy_clone_reads_through_references(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    name = push_versions(here, 3)[-1]
    version = versions(3)[-1]
    there.pull(lazy=True)
    assert stored(there) > 2 * len(FIRST)  # as it will be
    assert there.contents(name) == here.contents(name)
    with there.store.blobs.open(Digest.of(version).hash) as source:
        source.seek(11 * BLOCK_BYTES)
        assert source.read(10) == version[11 * BLOCK_BYTES :][:10]


def test_a_base_in_a_cold_pack_is_pushed(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    first = here.store.put(FIRST).hash
    data = changed(FIRST, 3)
    put_change(here.store, data, first)
    put_checkpoint(here.store, {"large": data}, name="later")
    here.push("later")
    put_checkpoint(here.store, {"large": FIRST})
    freeze(here.store)
    assert here.push("work").sent < 4 * BLOCK_BYTES
    there.pull()
    assert there.store.get(first) == FIRST


def test_many_versions_need_few_descriptors(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    name = push_versions(here, 12)[-1]
    there.pull(lazy=True)
    before = len(os.listdir("/proc/self/fd"))
    assert there.contents(name) == here.contents(name)
    for at, version in enumerate(versions(12)):
        assert there.store.get(Digest.of(version).hash) == version, at
    assert len(os.listdir("/proc/self/fd")) < before + 60


def test_a_pack_stays_as_long_as_another_refers_to_it(
    directory: Settings, sites: Sites, tmp_path: Path
) -> None:
    here = sites(directory)
    names = push_versions(here, 3)
    forget(here, names[0], names[1])
    age_files(tmp_path / "remote")
    for _ in range(2):
        collect(here)
        age_files(tmp_path / "remote")
    assert remote_fsck(here).faults == []
    there = sites(directory)
    there.pull()
    assert there.contents(names[2]) == here.contents(names[2])
    forget(here, names[2])
    for _ in range(2):
        collect(here)
        age_files(tmp_path / "remote")
    assert list((tmp_path / "remote/packs").iterdir()) == []


def test_what_refers_to_purged_frames_is_copied(
    directory: Settings, sites: Sites, tmp_path: Path
) -> None:
    here = sites(directory)
    names = push_versions(here, 3)
    first = Digest.of(FIRST).hash
    purges.purge_all(here.store, [Tombstone(first, len(FIRST), 1)])
    age(here.store)
    gc.collect(here.store)
    here.push("app")
    assert FIRST[11 * BLOCK_BYTES : 12 * BLOCK_BYTES] in raw_bytes(tmp_path / "remote")
    done = collect(here)
    assert done.purged
    assert done.copied
    assert len(raw_bytes(tmp_path / "remote")) < len(FIRST) + 6 * BLOCK_BYTES
    assert FIRST[11 * BLOCK_BYTES : 12 * BLOCK_BYTES] not in raw_bytes(tmp_path / "remote")
    assert remote_fsck(here).faults == []
    there = sites(directory)
    there.pull()
    for name in names[1:]:
        assert there.contents_but(name, first) == here.contents_but(name, first)


def raw_bytes(folder: Path) -> bytes:
    """What the packs hold; random bytes do not compress."""
    return b"".join(path.read_bytes() for path in sorted((folder / "packs").iterdir()))


def test_an_interrupted_push_is_taken_up(
    directory: Settings, sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = sites(directory), sites(directory)
    made = versions(2)
    record(here, made[0], 0)
    here.push("app")
    name = record(here, made[1], 1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(push, "_fill", killed)
        with pytest.raises(KeyboardInterrupt):
            here.push("app")
    assert here.push("app").sent == 0
    there.pull()
    assert there.contents(name) == here.contents(name)


# -- what a hostile remote may hold -------------------------------------------------------------


def hostile(site: Site, hash: str, size: int, blocks: list[bytes | FrameRef]) -> None:
    """Appends a pack whose large member has these blocks."""
    path = site.root.parent / "hostile.pack"
    with path.open("wb") as out:
        writer = PackWriter(out)
        with suppress(Corrupt):  # of another size
            writer.add_pieces(hash, size, blocks)
        name = writer.finish()
    index = open_pack(path).index
    site.settings.storage().put(log.pack_key(name), path)
    pack = Pack(name, "blobs", path.stat().st_size, path.stat().st_size - 56 - len(index.data))
    with site.remote() as remote:
        remote.catch_up()
        packs = {name: pack._replace(data=index.data).encode()}
        remote.append(lambda entry: entry.update(packs=packs))


def test_a_size_that_a_remote_claims_is_not_believed(directory: Settings, sites: Sites) -> None:
    here = sites(directory)
    first = here.store.put(FIRST).hash
    data = changed(FIRST, 3)
    put_change(here.store, data, first)
    hostile(here, first, 1 << 50, [FrameRef(None, 0, 0, 1 << 20)] * 3)
    put_checkpoint(here.store, {"large": data})
    assert here.push("work").blobs == 1


@pytest.mark.parametrize(
    "ref",
    [
        FrameRef("ab" * 32, 0, 0, BLOCK_BYTES),  # a pack that is not there
        FrameRef(None, 1, 0, BLOCK_BYTES),  # a reference
        FrameRef(None, 5000, 0, BLOCK_BYTES),
        FrameRef(None, 0, 0, BLOCK_BYTES),  # other bytes
        FrameRef(None, 0, 1, BLOCK_BYTES),  # behind its end
    ],
)
def test_a_reference_that_leads_elsewhere_is_refused(
    directory: Settings, sites: Sites, ref: FrameRef
) -> None:
    here, there = sites(directory), sites(directory)
    data = os.urandom(MIN_BYTES)
    put_checkpoint(here.store, {"large": data})
    blocks: list[bytes | FrameRef] = [
        data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)
    ]
    blocks[1] = ref
    hostile(here, Digest.of(data).hash, len(data), blocks)
    here.push("work")
    with pytest.raises(Corrupt):
        there.pull()
    assert there.heads("checkpoints/") == {}
