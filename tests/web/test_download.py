"""Downloads of blobs and trees."""

from __future__ import annotations

import http.client
import io
import os
import tarfile

import pytest
import zstandard

from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.web.download import blob, safe_name
from casfs.web.site import Call, Site
from tests.support.helpers import ABSENT, LARGE, put_tree
from tests.support.web import Web


def test_a_blob_is_saved_never_shown(web: Web, disk_store: Store) -> None:
    html = b"<script>alert(1)</script>" + os.urandom(3 << 20)
    for data in (html, LARGE, b""):
        hash = disk_store.put(data).hash
        found = web.get(f"/blobs/{hash}?name=a/..%2F%0d%0a%22x.html")
        assert found.body == data
        assert found.headers["content-type"] == "application/octet-stream"
        assert found.headers["content-length"] == str(len(data))
        assert found.headers["content-disposition"] == 'attachment; filename="_x.html"'
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["cache-control"] == "private, no-store"
        head = web.ask("HEAD", f"/blobs/{hash}", Cookie=web.cookie)
        assert (head.status, head.body) == (200, b"")


def test_a_tree_is_saved_as_a_compressed_tar(web: Web, disk_store: Store) -> None:
    files = {"a": b"1", "large": os.urandom(2 << 20), b"\xff": {"<img src=x>": b"2"}}
    root = put_tree(disk_store, files)
    found = web.get(f"/trees/{root}.tar.zst?name=work")
    assert found.headers["content-disposition"] == 'attachment; filename="work.tar.zst"'
    data = zstandard.ZstdDecompressor().decompressobj().decompress(found.body)
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        names = [os.fsencode(one.name) for one in tar]
        assert names == [b"work", b"work/a", b"work/large", b"work/\xff", b"work/\xff/<img src=x>"]
        large = tar.extractfile("work/large")
        assert large is not None
        assert large.read() == files["large"]


def test_what_is_not_there_is_an_error_page(web: Web, disk_store: Store) -> None:
    text = disk_store.put(b"text").hash
    for path in (f"/blobs/{ABSENT}", "/blobs/x", f"/trees/{ABSENT}.tar.zst"):
        assert "no blob" in web.get(path, 404).text
    assert "is a blob, not a node" in web.get(f"/trees/{text}.tar.zst", 404).text


def test_damage_ends_the_download_before_its_end(web: Web, disk_store: Store) -> None:
    damaged = os.urandom(1 << 20)
    root = put_tree(disk_store, {"a": os.urandom(1 << 20), "b": damaged})
    hash = disk_store.put(damaged).hash
    path = disk_store.root / "objects" / hash[:2] / hash[2:]
    path.chmod(0o600)
    path.write_bytes(bytes(1 << 20))
    with pytest.raises(Exception, match=r"IncompleteRead|closed"):
        web.get(f"/trees/{root}.tar.zst")
    assert "does not hash to its name" in (disk_store.root / "log/web.jsonl").read_text()
    web.get(f"/blobs/{hash}", 500)
    web.get("/")


def test_who_goes_away_stops_the_download(web: Web, disk_store: Store) -> None:
    root = put_tree(disk_store, {str(n): os.urandom(1 << 20) for n in range(40)})
    connection = http.client.HTTPConnection(web.host, timeout=30)
    connection.request("GET", f"/trees/{root}.tar.zst", None, {"Cookie": web.cookie})
    assert len(connection.getresponse().read(1000)) == 1000
    connection.close()
    web.get("/")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("src/a.py", "a.py"),
        ("..", "download"),
        (".bashrc", "bashrc"),
        ("a\r\nSet-Cookie: x", "a_Set-Cookie_x"),
        ("Grüße.txt", "Gr_e.txt"),
        ("x" * 300 + ".txt", "x" * 96 + ".txt"),
        ("a\\b:c.exe", "a_b_c.exe"),
    ],
)
def test_names_are_safe(text: str, name: str) -> None:
    assert safe_name(text) == name


def test_the_first_piece_is_made_before_the_answer(store: Store) -> None:
    with pytest.raises(NotFound):
        blob(Call(Site(store), "", {"hash": ABSENT}, {}, {}, 0))
