from __future__ import annotations

import io
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casfs.digest import hash_bytes
from casfs.errors import Corrupt, CorruptBlob, NotFound
from casfs.packs.index import PackIndex
from casfs.packs.layout import (
    ALIGNMENT,
    BLOCK_BYTES,
    COUNTS,
    DICTIONARY,
    FRAME,
    HEADER,
    MAGIC,
    MAX_FRAME_BYTES,
    MEMBER,
    META,
    RAW,
    TRAILER,
    ZSTD,
    FrameRef,
)
from casfs.packs.reader import PackReader, open_pack, read_index, verify
from casfs.packs.writer import PackWriter
from casfs.system import zstd
from tests.packs import foreign_reader

TYPE = "ab" * 32
NODE = b'{"payload":{"name":"n%d","kind":"of a node"},"type":"x"}'
NODES = [NODE % one for one in range(900)]
Blobs = list[tuple[bytes, str | None]]


def made(blobs: Blobs, **options: bool | int) -> bytes:
    out = io.BytesIO()
    writer = PackWriter(out, **options)  # type: ignore[arg-type]
    for number, (data, type) in enumerate(blobs):
        assert writer.add(hash_bytes(data), data, type) == number
    writer.finish()
    assert writer.size == len(out.getvalue())
    return out.getvalue()


def with_blocks(blobs: list[list[bytes | FrameRef]], whole: list[bytes]) -> bytes:
    out = io.BytesIO()
    writer = PackWriter(out)
    for blocks, data in zip(blobs, whole, strict=True):
        writer.add_pieces(hash_bytes(data), len(data), blocks)
    writer.finish()
    return out.getvalue()


def reader_among(packs: dict[str, bytes], name: str) -> PackReader:
    data = packs[name]

    def read_at(offset: int, size: int) -> bytes:
        return data[offset : offset + size]

    index = read_index(read_at, len(data))
    return PackReader(index, read_at, open_other=lambda other: reader_among(packs, other))


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_blocks_and_references_to_them(data: st.DataObject) -> None:
    kinds = [bytes([n]) * BLOCK_BYTES for n in range(5)]
    chosen = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=9))
    first = [kinds[n] for n in chosen]
    one = with_blocks([list(first)], [b"".join(first)])
    name = read_index(lambda offset, size: one[offset : offset + size], len(one)).name
    # Another pack has these blocks again, in any order, and some of its own.
    own = b"own" + bytes(BLOCK_BYTES - 3)
    again: list[bytes | FrameRef] = [own]
    whole = [own]
    for _ in range(data.draw(st.integers(1, 9))):
        number = data.draw(st.integers(0, len(first)))
        half = data.draw(st.booleans()) * BLOCK_BYTES // 2
        is_own = number == len(first)
        again.append(
            FrameRef(None if is_own else name, 0 if is_own else number, half, BLOCK_BYTES - half)
        )
        whole.append((own if is_own else first[number])[half:])
    content = b"".join(whole)
    two = with_blocks([[*again, b"tail"]], [content + b"tail"])
    other = read_index(lambda offset, size: two[offset : offset + size], len(two)).name
    reader = reader_among({name: one, other: two}, other)
    assert reader.read(0) == content + b"tail"
    assert list(verify(reader)) == []
    has_references = any(isinstance(block, FrameRef) and block.pack for block in again)
    assert reader.index.referred_packs() == ({name} if has_references else set())
    # Without the other pack it is damage.
    alone = PackReader(reader.index, lambda offset, size: two[offset : offset + size])
    if has_references:
        with pytest.raises(CorruptBlob, match="not here"):
            alone.read(0)


def with_dictionary(trained: bytes, blobs: Blobs) -> bytes:
    """A pack whose nodes are compressed with the member `trained`, which the writer never does."""
    out = bytearray(HEADER)
    dictionary = zstd.Dictionary(trained)
    frames, members = [], []
    for data, type in blobs:
        hash, is_node = bytes.fromhex(hash_bytes(data)), int(type is not None)
        members.append(MEMBER.pack(hash, len(data), len(frames), 0, is_node))
        for start in range(0, len(data), MAX_FRAME_BYTES):
            piece = data[start : start + MAX_FRAME_BYTES]
            stored = dictionary.compress(piece) if is_node else piece
            frame = (len(out), len(stored), len(piece), ZSTD if is_node else RAW, is_node)
            frames.append(FRAME.pack(*frame))
            out += stored
    table = (bytes.fromhex(TYPE), DICTIONARY.pack(blobs.index((trained, None))))
    index = b"".join((COUNTS.pack(1, 1, len(frames), len(members)), *table, *frames, *members))
    name = bytes.fromhex(hash_bytes(index))
    return bytes(out + index + TRAILER.pack(len(out), len(index), name, MAGIC))


def reader_of(data: bytes) -> PackReader:
    def read_at(offset: int, size: int) -> bytes:
        return data[offset : offset + size]

    return PackReader(read_index(read_at, len(data)), read_at)


def check(data: bytes, blobs: Blobs) -> PackReader:
    reader = reader_of(data)
    assert reader.index.members == len(blobs)
    for number, (content, type) in enumerate(blobs):
        member = reader.index.member(number)
        assert (member.hash, member.size, member.type) == (hash_bytes(content), len(content), type)
        assert reader.read(number) == content
    assert not list(verify(reader))
    return reader


contents = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda one, count: one * count, st.binary(min_size=1, max_size=9), st.integers(1, 9000)
    ),
)
blobs_of = st.lists(st.tuples(contents, st.sampled_from([None, TYPE, META])), max_size=30)


@settings(deadline=None, max_examples=60)
@given(blobs_of, st.booleans(), st.integers(1, 5000))
def test_what_is_written_is_read(blobs: Blobs, aligned: bool, frame_bytes: int) -> None:
    data = made(blobs, aligned=aligned, frame_bytes=frame_bytes)
    assert data == made(blobs, aligned=aligned, frame_bytes=frame_bytes)
    check(data, blobs)


@pytest.mark.parametrize("aligned", [False, True])
def test_a_large_member_has_frames_of_its_own(aligned: bool) -> None:
    large = bytes(range(256)) * 10_000 + b"end"
    blobs: Blobs = [(b"small", None), (large, None), (b"behind", None)]
    reader = check(made(blobs, aligned=aligned), blobs)
    assert reader.index.frames == 2 + -(-len(large) // MAX_FRAME_BYTES)
    assert [len(piece) for piece in reader.pieces(1)][:2] == [MAX_FRAME_BYTES] * 2


def test_an_aligned_pack_has_plain_bytes_at_its_offsets() -> None:
    blobs: Blobs = [(bytes([one]) * (one * 1000), None) for one in range(1, 20)]
    data = made(blobs, aligned=True)
    index = reader_of(data).index
    for number, (content, _) in enumerate(blobs):
        frame = index.frame(index.member(number).frame)
        assert (frame.offset % ALIGNMENT, frame.codec) == (0, RAW)
        end = frame.offset + frame.size
        assert not any(data[end : end + -end % ALIGNMENT]), "zeros up to the next block"
        assert data[frame.offset : frame.offset + frame.size] == content


def test_neighbours_share_a_frame_until_it_is_full() -> None:
    blobs: Blobs = [(b"line %d\n" % one * 20, None) for one in range(500)]
    index = check(made(blobs, frame_bytes=4096), blobs).index
    assert index.frames < 30
    assert index.frame(0).codec == ZSTD
    assert {index.member(number).frame for number in range(500)} == set(range(index.frames))


def test_nodes_may_be_compressed_with_the_dictionary_of_their_type() -> None:
    trained = zstd.train(NODES, 2000)
    assert trained is not None
    blobs: Blobs = [(trained, None), *((node, TYPE) for node in NODES[:50])]
    index = check(with_dictionary(trained, blobs), blobs).index
    assert index.frame(index.member(1).frame).dictionary == 1


def test_a_stream_is_written_in_constant_memory_and_must_have_its_size() -> None:
    data = bytes(range(256)) * 9000
    out = io.BytesIO()
    writer = PackWriter(out)
    writer.add_stream(hash_bytes(data), len(data), io.BytesIO(data))
    writer.finish()
    check(out.getvalue(), [(data, None)])
    for wrong in (len(data) - 1, len(data) + 1):
        with pytest.raises(Corrupt, match="bytes long"):
            PackWriter(io.BytesIO()).add_stream(hash_bytes(data), wrong, io.BytesIO(data))


def test_the_name_is_the_hash_of_the_index() -> None:
    data = made([(b"one", None)])
    name = data[-TRAILER.size :][16:48].hex()
    index = reader_of(data).index
    assert index.name == name == hash_bytes(index.data)
    with pytest.raises(Corrupt, match="does not hash to its name"):
        PackIndex("00" * 32, index.data)


def test_a_damaged_frame_costs_its_members_alone() -> None:
    blobs: Blobs = [(b"content %d " % one * 50, None) for one in range(90)]
    data = bytearray(made(blobs, frame_bytes=2000))
    index = reader_of(bytes(data)).index
    broken = index.member(40).frame
    frame = index.frame(broken)
    data[frame.offset + frame.stored // 2] ^= 0xFF
    reader = reader_of(bytes(data))
    lost = {number for number in range(90) if index.member(number).frame == broken}
    assert {number for number, _ in verify(reader)} <= lost
    for number, (content, _) in enumerate(blobs):
        if number not in lost:
            assert reader.read(number) == content
    with pytest.raises(CorruptBlob, match=f"member 40 of pack {index.name}, frame {broken}"):
        reader.read(40)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damage_is_never_served(choice: st.DataObject) -> None:
    blobs: Blobs = [(b"%d: a line of text\n" % one * 30, None) for one in range(20)]
    data = bytearray(made(blobs, frame_bytes=choice.draw(st.sampled_from([1, 700, 9000]))))
    for _ in range(choice.draw(st.integers(1, 3))):
        data[choice.draw(st.integers(0, len(data) - 1))] = choice.draw(st.integers(0, 255))
    del data[len(data) - choice.draw(st.sampled_from([0, 0, 0, 1, 56, 57, 300])) :]
    try:
        reader = reader_of(bytes(data))
    except Corrupt:
        return
    for number, (content, _) in enumerate(blobs):
        with suppress(Corrupt):
            assert reader.read(number) == content


def test_a_pack_on_disk(tmp_path: Path) -> None:
    blobs: Blobs = [(b"one", None), (b"two" * 9000, TYPE)]
    path = tmp_path / "pack"
    path.write_bytes(made(blobs))
    assert open_pack(path).read(1) == blobs[1][0]
    with pytest.raises(NotFound, match="no pack"):
        open_pack(tmp_path / "other")
    path.write_bytes(b"text")
    with pytest.raises(Corrupt, match="not a pack"):
        open_pack(path)


def test_a_program_without_casfs_reads_it(tmp_path: Path) -> None:
    assert "casfs" not in {
        line.split()[1] for line in Path(foreign_reader.__file__).read_text().splitlines()
        if line.startswith(("import", "from"))
    }  # fmt: skip
    trained = zstd.train(NODES, 2000)
    assert trained is not None
    large = bytes(range(256)) * 9000
    path = tmp_path / "pack"
    data = with_dictionary(
        trained, [(large, None), (trained, None), *((node, TYPE) for node in NODES)]
    )
    path.write_bytes(data)
    pack = foreign_reader.Pack(path)
    assert pack.name.hex() == reader_of(data).index.name
    assert pack.content(0) == large
    assert pack.content(5) == NODES[3]
    command = [sys.executable, foreign_reader.__file__, str(path)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert listed.splitlines()[2] == f"{hash_bytes(NODES[0])} {len(NODES[0])} {TYPE}"
    one = subprocess.run([*command, "0"], capture_output=True, check=True).stdout
    assert one == large
