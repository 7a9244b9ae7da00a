"""Credentials from the environment and from the usual AWS files; none is ever shown."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from casfs.errors import AccessDenied, Failed, Invalid
from casfs.object_storage import credentials
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.location import open_storage
from tests.support.s3_servers import CREDENTIALS, KEY_ID, SECRET, S3Server

KEYS = f"aws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n"
WRONG = "aws_access_key_id = OTHERKEYID\naws_secret_access_key = othersecret\n"


def write(name: str, text: str) -> Path:
    path = Path.home() / ".aws" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def works(storage: ObjectStorage) -> bool:
    storage.put("a", b"1")
    return storage.get("a") == b"1"


@pytest.mark.parametrize(
    ("files", "env"),
    [
        ({}, CREDENTIALS),
        ({"credentials": WRONG}, CREDENTIALS),
        ({"credentials": f"[default]\n{WRONG}"}, {**CREDENTIALS, "AWS_PROFILE": "no-such"}),
        ({"credentials": f"[default]\n{KEYS}"}, {}),
        ({"config": f"[default]\n{KEYS}"}, {}),
        ({"config": f"[default]\n{WRONG}", "credentials": f"[default]\n{KEYS}"}, {}),
        ({"credentials": f"[default]\n{WRONG}[work]\n{KEYS}"}, {"AWS_PROFILE": "work"}),
        ({"config": f"[default]\n{WRONG}[profile work]\n{KEYS}"}, {"AWS_PROFILE": "work"}),
        ({"elsewhere": f"[default]\n{KEYS}"}, {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/elsewhere"}),
        ({"elsewhere": f"[default]\n{KEYS}"}, {"AWS_CONFIG_FILE": "~/.aws/elsewhere"}),
    ],
)
def test_where_they_are_found(
    seaweedfs: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    env: dict[str, str],
) -> None:
    for name, text in files.items():
        write(name, text if text.startswith("[") else f"[default]\n{text}")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert works(open_storage(seaweedfs.url(), endpoint=seaweedfs.endpoint))


def test_endpoint_and_region_of_a_profile(
    seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("credentials", f"[here]\n{KEYS}")
    write(
        "config",
        f"[profile here]\nendpoint_url = {seaweedfs.endpoint}\nregion = eu-north-1\ns3 =\n"
        "  max_concurrent_requests = 20\n",
    )
    monkeypatch.setenv("AWS_PROFILE", "here")
    assert works(open_storage(seaweedfs.url()))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # of more weight than the file
    with pytest.raises(Exception, match="cannot connect"):
        open_storage(seaweedfs.url(), patience_s=0).get("a")
    assert works(open_storage(seaweedfs.url(), endpoint=seaweedfs.endpoint))


def test_new_ones_in_the_file_are_used(
    seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the temporary ones that a tool renews."""
    monkeypatch.setattr(credentials, "REREAD", credentials.REREAD * 0)
    write("credentials", f"[default]\n{WRONG}")
    storage = open_storage(seaweedfs.url(), endpoint=seaweedfs.endpoint)
    with pytest.raises(AccessDenied):
        storage.get("a")
    write("credentials", f"[default]\n{KEYS}")
    assert works(storage)


def refused(storage: ObjectStorage, secret: str, caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level(logging.DEBUG), pytest.raises(AccessDenied) as caught:
        storage.get("a")
    chain: BaseException | None = caught.value
    while chain is not None:
        assert secret not in repr(chain) + caplog.text + repr(storage)
        chain = chain.__cause__
    return str(caught.value)


def test_wrong_ones(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    storage = open_storage(s3.url(), endpoint=s3.endpoint)
    text = refused(storage, "wrong-secret", caplog)
    assert text.startswith(f"{storage.url}/a: the server refused the credentials (403 Signature")
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" in text
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NOSUCHKEY")
    refused(open_storage(s3.url(), endpoint=s3.endpoint), "wrong-secret", caplog)


def test_a_bucket_that_does_not_exist(s3: S3Server) -> None:
    storage = open_storage("s3://no-such-bucket/x", endpoint=s3.endpoint)
    with pytest.raises(AccessDenied, match=r"^s3://no-such-bucket/x at http:.* does not exist"):
        storage.get("a")


def test_a_profile_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    write("credentials", f"[default]\n{KEYS}")
    monkeypatch.setenv("AWS_PROFILE", "no-such")
    with pytest.raises(AccessDenied, match=r"^profile 'no-such' of .* put them there") as caught:
        open_storage("s3://bkt")
    assert SECRET not in str(caught.value)


def test_a_profile_without_a_secret() -> None:
    write("credentials", f"[default]\naws_access_key_id = {KEY_ID}\n")
    with pytest.raises(AccessDenied, match=r"profile 'default' .* with its aws_secret_access_key"):
        open_storage("s3://bkt")


@pytest.mark.parametrize("text", [f"{SECRET}\n{KEYS}", f"[default\n{KEYS}", "\udcff"])
def test_a_file_that_cannot_be_parsed_is_not_repeated(text: str) -> None:
    path = write("credentials", "")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Invalid, match=f"^{path}: not a file of AWS settings") as caught:
        open_storage("s3://bkt")
    assert SECRET not in str(caught.value)
    path.unlink()
    path.mkdir()
    with pytest.raises(Failed, match=f"^cannot read {path}: "):
        open_storage("s3://bkt")
