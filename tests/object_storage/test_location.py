"""Which URLs name object storage; what is said of others, and where the S3 client is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from casfs.errors import Failed, Invalid
from casfs.object_storage.location import open_storage

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        "s3://bkt",
        "s3://bkt/",
        "s3://b.k-t/one/two",
        "s3://bkt/a_b=c+d@e.f/",
        "file:///srv/remote",
        "file:///srv/re%20mote/",
    ],
)
def test_a_url(url: str) -> None:
    assert open_storage(url).url == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    """bkt s3: s3:// s3:///prefix s3://b s3://BKT s3://bkt:80 s3://bkt/../x s3://bkt/a//b s3://bkt/ä
    s3://bkt/a%20b s3://b..é http://bkt https://bkt/x ssh://host/x file: file:// file:/// file://h/x
    file:///a%00b s3://[::1 s3://bkt:x /srv/remote""".split(),
)
def test_what_is_not_a_url(url: str) -> None:
    with pytest.raises(Invalid, match=r"write s3://BUCKET/PREFIX or file:///DIRECTORY"):
        open_storage(url)


@pytest.mark.parametrize(
    "url",
    [f"s3://key:{SECRET}@bkt/x", f"s3://bkt/x?secret={SECRET}", f"s3://bkt#{SECRET}"],
)
def test_secrets_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(Invalid, match=r"^s3://bkt: credentials .* not belong") as caught:
        open_storage(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bkt", "s3://bkt/prefix"])
@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "https://s3.example.org"])
def test_an_endpoint(url: str, endpoint: str) -> None:
    assert open_storage(url, endpoint=endpoint, region="eu-west-1").url == url


@pytest.mark.parametrize(
    "endpoint", ["", "127.0.0.1:9000", "ftp://h", "http://", f"http://u:{SECRET}@h", "http://h:x"]
)
def test_what_is_not_an_endpoint(endpoint: str) -> None:
    with pytest.raises(Invalid, match=r"write http://HOST:PORT or https://HOST") as caught:
        open_storage("s3://bkt", endpoint=endpoint)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("given", [{"endpoint": "http://h"}, {"region": "eu-west-1"}])
def test_a_directory_has_no_endpoint(given: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="without endpoint and region"):
        open_storage("file:///srv/remote", **given)


def test_without_the_s3_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "casfs.object_storage.s3", raising=False)
    with pytest.raises(Failed, match=r"^s3://bkt needs an extra: pip install 'casfs-store\[s3\]'"):
        open_storage("s3://bkt")


def test_a_directory_loads_no_s3_client(tmp_path: Path) -> None:
    code = (
        "import sys; from casfs.object_storage.location import open_storage;"
        f"s = open_storage('file://{tmp_path}'); s.put('a', b'1'); assert s.get('a') == b'1';"
        "assert not {'obstore', 'urllib.request'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
