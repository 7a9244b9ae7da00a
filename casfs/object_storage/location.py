"""Opens the object storage that a URL names."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from casfs.errors import Failed, Invalid
from casfs.object_storage.directory import DirectoryStorage
from casfs.object_storage.interface import ObjectStorage
from casfs.system.extras import install_line

PATIENCE_S = 60.0  # for retries of one request
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
PREFIX = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._=+@-]+)*")
URL = "write s3://BUCKET/PREFIX or file:///DIRECTORY"
ENDPOINT = "write http://HOST:PORT or https://HOST"


def open_storage(
    url: str,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    patience_s: float = PATIENCE_S,
) -> ObjectStorage:
    """Returns the object storage of `url`, `s3://bucket/prefix` or `file:///directory`; nothing is
    asked of it yet. `endpoint`: the server, where it is not AWS. To be opened after a fork, not
    before. Raises Invalid; Failed where the S3 client is not installed; AccessDenied where a
    profile was asked for and holds no credentials."""
    parts = _split(url, URL)
    plain = url.rstrip("/")
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc or not path.strip("/") or "\0" in path or endpoint or region:
            raise Invalid(f"{url}: no URL of a directory; {URL}, without endpoint and region")
        return DirectoryStorage(plain, Path(path))
    prefix = parts.path.rstrip("/")
    if parts.scheme != "s3" or not BUCKET.fullmatch(parts.netloc) or not PREFIX.fullmatch(prefix):
        raise Invalid(f"{url}: no URL of a remote; {URL}")
    if endpoint is not None:
        server = _split(endpoint, ENDPOINT)
        if server.scheme not in ("http", "https") or not server.hostname:
            raise Invalid(f"{endpoint}: no URL of a server; {ENDPOINT}")
    try:
        from casfs.object_storage.s3 import S3Storage
    except ImportError as error:
        raise Failed(f"{url} needs an extra: {install_line('s3')} ({error})") from None
    return S3Storage(
        plain,
        parts.netloc,
        prefix=prefix[1:],
        endpoint=endpoint or "",
        region=region or "",
        patience_s=patience_s,
    )


def _split(url: str, form: str) -> SplitResult:
    """Raises Invalid, which does not repeat what may be a secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise Invalid(f"not a URL; {form}") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        where = f"{parts.scheme}://{parts.hostname}"
        raise Invalid(f"{where}: credentials and parameters do not belong into a URL; {form}")
    return parts
