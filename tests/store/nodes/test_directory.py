from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casfs import canonical
from casfs.digest import Digest
from casfs.errors import Invalid
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from casfs.store.nodes.registry import builtin
from casfs.store.nodes.schema import Schema
from tests.support.schema_payloads import h, sized

SCHEMA = Schema(builtin()["directory"])
DIGEST = Digest(h("content"), 7)

NAMES = (
    st.binary(min_size=1, max_size=12)
    .map(lambda name: name.replace(b"/", b"_").replace(b"\0", b"_"))
    .filter(lambda name: name not in (b".", b".."))
) | st.text("aé😀.", min_size=3, max_size=6).map(str.encode)
TARGETS = st.binary(min_size=1, max_size=20).map(lambda target: target.replace(b"\0", b"/"))
DIGESTS = st.builds(
    Digest, st.text("0123456789abcdef", min_size=64, max_size=64), st.integers(0, 9)
)
PROPERTIES = st.none() | st.builds(
    Properties,
    st.none() | st.tuples(st.integers(-(2**40), 2**40), st.integers(0, 999_999_999)),
    st.integers(0, 0o7777),
)


def entries(names: list[bytes]) -> st.SearchStrategy[list[Entry]]:
    kinds = st.sampled_from([File, Subdirectory, Symlink])

    def entry(name: bytes, kind: Any) -> st.SearchStrategy[Entry]:
        if kind is File:
            return st.builds(File, st.just(name), DIGESTS, st.booleans(), PROPERTIES)
        if kind is Symlink:
            return st.builds(Symlink, st.just(name), TARGETS, PROPERTIES)
        return st.builds(Subdirectory, st.just(name), DIGESTS)

    return st.tuples(
        *(kinds.flatmap(lambda kind, name=name: entry(name, kind)) for name in names)
    ).map(list)


LISTINGS = st.lists(NAMES, unique=True, max_size=6).flatmap(entries)


@given(LISTINGS, PROPERTIES)
def test_what_is_encoded_is_decoded(found: list[Entry], own: Properties | None) -> None:
    payload = directory.encode(found, own)
    SCHEMA.check(payload)
    read = canonical.decode(canonical.encode(payload))
    assert directory.decode(read) == {entry.name: entry for entry in found}
    assert list(directory.decode(read)) == sorted(entry.name for entry in found)
    assert directory.properties(read) == own


@given(LISTINGS, st.randoms())
def test_one_directory_has_one_payload(found: list[Entry], order: Any) -> None:
    mixed = list(found)
    order.shuffle(mixed)
    assert directory.encode(mixed) == directory.encode(found)


def test_the_form() -> None:
    payload = directory.encode(
        [
            Symlink(b"link", b"to \xff"),
            File(b"b", DIGEST, executable=True),
            File(b"a\xff", DIGEST),
            Subdirectory("ä".encode(), DIGEST),
        ]
    )
    digest = {"hash": DIGEST.hash, "size_bytes": 7}
    assert payload == {
        "files": [
            {"name_base64": "Yf8=", "digest": digest, "is_executable": False},
            {"name": "b", "digest": digest, "is_executable": True},
        ],
        "directories": [{"name": "ä", "digest": digest}],
        "symlinks": [{"name": "link", "target_base64": "dG8g/w=="}],
    }


# -- names that are refused, on the way in and on the way out -----------------------------

BAD_NAMES = [b"", b".", b"..", b"/", b"a/b", b"a/", b"a\0", b"\0", b"\xff/", b"\xff\0", b"x" * 256]
MAKE: list[Any] = [
    lambda name: File(name, DIGEST),
    lambda name: Subdirectory(name, DIGEST),
    lambda name: Symlink(name, b"target"),
]


def payload_with(entry: Entry) -> dict[str, Any]:
    """The payload that a writer without checks would make."""
    item: dict[str, Any]
    try:
        item = {"name": entry.name.decode()}
    except UnicodeDecodeError:
        item = {"name_base64": base64.b64encode(entry.name).decode()}
    if isinstance(entry, Symlink):
        return {"files": [], "directories": [], "symlinks": [{**item, "target": "target"}]}
    item["digest"] = sized("content", 7)
    if isinstance(entry, Subdirectory):
        return {"files": [], "directories": [item], "symlinks": []}
    return {"files": [{**item, "is_executable": False}], "directories": [], "symlinks": []}


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused(name: bytes, make: Any) -> None:
    with pytest.raises(Invalid, match="the name"):
        directory.encode([make(name)])
    with pytest.raises(Invalid, match="the name"):
        directory.decode(payload_with(make(name)))


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("name", [b"...", b"..a", b".a", b"a.", b"\n", b"\\", b"x" * 255, b"\xff"])
def test_an_odd_name_is_fine(name: bytes, make: Any) -> None:
    payload = directory.encode([make(name)])
    SCHEMA.check(payload)
    assert list(directory.decode(payload)) == [name]


@pytest.mark.parametrize("target", [b"", b"a\0b", b"\xff\0"])
def test_a_bad_target_is_refused(target: bytes) -> None:
    with pytest.raises(Invalid, match="target"):
        directory.encode([Symlink(b"link", target)])


def test_a_bad_target_is_refused_on_load() -> None:
    for item in ({"target": ""}, {"target": "a\0b"}, {"target_base64": "/wA="}):
        payload = {"files": [], "directories": [], "symlinks": [{"name": "link", **item}]}
        with pytest.raises(Invalid, match="target"):
            directory.decode(payload)


# -- order and duplicates -----------------------------------------------------------------


@pytest.mark.parametrize("first", MAKE)
@pytest.mark.parametrize("second", MAKE)
def test_a_name_stands_once_over_the_three_lists(first: Any, second: Any) -> None:
    with pytest.raises(Invalid, match=r"\$\.\w+.*'same'"):
        directory.encode([first(b"same"), second(b"same")])


@pytest.mark.parametrize("key", ["files", "directories", "symlinks"])
@pytest.mark.parametrize("names", [("b", "a"), ("a", "a"), ("é", "z"), ("a", "c", "b")])
def test_a_list_is_sorted_by_name_bytes(key: str, names: tuple[str, ...]) -> None:
    item = {"digest": sized("x", 1), "is_executable": False, "target": "t"}
    payload: dict[str, Any] = {"files": [], "directories": [], "symlinks": []}
    payload[key] = [{"name": name, **item} for name in names]
    with pytest.raises(Invalid, match=rf"\$\.{key}\[\d\]: .* is out of order"):
        directory.decode(payload)


def test_base64_names_are_sorted_among_the_others_by_their_bytes() -> None:
    payload = directory.encode([File(name, DIGEST) for name in (b"\xff", b"z", b"a\xfe", b"a\xc3")])
    listed = [item.get("name") or item["name_base64"] for item in payload["files"]]
    assert listed == ["YcM=", "Yf4=", "z", "/w=="]


@pytest.mark.parametrize(
    "text",
    [
        base64.b64encode(b"plain").decode(),
        base64.b64encode("é".encode()).decode(),
        "",
        "/w",
        "/x==",
        "/w==\n",
        "_w==",
        "é",
        "/w==/w==",
    ],
)
@pytest.mark.parametrize("key", ["name", "target"])
def test_base64_is_only_for_what_is_not_utf8_and_has_one_form(text: str, key: str) -> None:
    item = {"name": "a", "target": "t", f"{key}_base64": text}
    del item[key]
    payload = {"files": [], "directories": [], "symlinks": [item]}
    with pytest.raises(Invalid, match=rf"\$\.symlinks\[0\]\.{key}_base64"):
        directory.decode(payload)
