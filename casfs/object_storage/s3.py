"""An S3 bucket as object storage, by obstore.

obstore's own retries are off: they do not tell that an earlier try may have reached the server, nor
end when the work is interrupted. Its errors repeat what the server said, so nothing of them comes
into a message but the HTTP status and the error code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import S3Store

from casfs.errors import AccessDenied, Corrupt, Failed, NotFound, Unreachable
from casfs.object_storage import credentials
from casfs.object_storage.interface import KEY, MAX_OBJECT_BYTES, Found, ObjectStorage
from casfs.object_storage.retrying import Transient, retry, waited
from casfs.system.safe_text import escape
from casfs.version import VERSION

if TYPE_CHECKING:  # types only
    from obstore import GetOptions

T = TypeVar("T")
CONNECT_PATIENCE_S = 5.0  # a server that is not there at all is soon given up
MIN_READ_TIMEOUT_S = 5.0
READ_TIMEOUT = timedelta(seconds=30)  # without a byte; in all
TIMEOUT = timedelta(minutes=15)
MULTIPART_BYTES = 32 << 20  # larger files go in parts
PART_BYTES = 16 << 20
PARTS_AT_ONCE = 3
PROBE_KEY = "casfs-probe"  # asked for where only the header of the answer matters

STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>(\w{1,64})</Code>")
TRY_AGAIN = {"408", "409", "425", "429", "500", "502", "503", "504", "RequestTimeout", "SlowDown"}
NO_ACCESS = {"401", "403", "ExpiredToken", "InvalidToken", "InvalidAccessKeyId"}
OTHER_REGION = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
REDIRECT = "redirect without LOCATION"  # in obstore's error, for another region too
NO_CREDENTIALS = "latest/api/token"  # where the client looks last: a machine of AWS
SET_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


class S3Storage(ObjectStorage):
    """Objects of a bucket, below a prefix. `patience_s` bounds the retries of a request."""

    def __init__(
        self, url: str, bucket: str, prefix: str, endpoint: str, region: str, patience_s: float
    ) -> None:
        super().__init__(url)
        settings, provider = credentials.access()
        settings |= {"endpoint": endpoint} if endpoint else {}
        settings |= {"region": region} if region else {}
        self._where = f"{url} at {settings['endpoint']}" if "endpoint" in settings else url
        self._patience_s = patience_s

        def client(read_timeout: timedelta) -> S3Store:
            return S3Store(
                bucket,
                prefix=prefix or None,
                disable_bulk_delete=True,  # not every server has it
                client_options={
                    "allow_http": True,  # where the endpoint says so
                    "user_agent": f"casfs/{VERSION}",
                    "timeout": TIMEOUT,
                    "read_timeout": read_timeout,
                },
                retry_config={"max_retries": 0},
                credential_provider=provider,
                **settings,
            )

        patience = timedelta(seconds=max(patience_s, MIN_READ_TIMEOUT_S))
        self._reads = client(min(READ_TIMEOUT, patience))
        self._writes = client(TIMEOUT)  # no byte comes until all of an upload is sent

    def get(self, key: str, max_size: int = MAX_OBJECT_BYTES) -> bytes:
        return self._read(key, options=None, max_size=max_size)[0]

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        if size == 0:
            return b""
        return self.exactly(key, self._read(key, {"range": (offset, offset + size)}, size)[0], size)

    def get_tail(self, key: str, size: int) -> tuple[bytes, int]:
        data, total = self._read(key, {"range": {"suffix": size}}, size)
        return self.exactly(key, data, min(size, total)), total

    def _read(self, key: str, options: GetOptions | None, max_size: int) -> tuple[bytes, int]:
        def request() -> tuple[bytes, int]:
            response = obstore.get(self._reads, key, options=options)
            start, end = response.range
            self.bounded(key, end - start, max_size)
            return bytes(response.bytes()), response.meta["size"]

        return self._done(key, request)

    def put(self, key: str, data: bytes | Path) -> None:
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        upload = partial(obstore.put, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        parts = size >= MULTIPART_BYTES
        self._done(key, lambda: upload(self._writes, key, data, use_multipart=parts))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        def request() -> bool:
            try:
                obstore.put(self._writes, key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:  # or, with 409, another put of this key is under way
                try:
                    return self.get(key, len(data)) == data
                except Corrupt:  # larger
                    return False
                except NotFound:
                    raise Transient(
                        Unreachable(f"{self.place(key)} is in use; try again")
                    ) from None
            return True

        return self._done(key, request)

    def head(self, key: str) -> Found | None:
        try:
            meta = self._done(key, lambda: obstore.head(self._reads, key))
        except NotFound:
            return None
        return Found(meta["size"], meta["last_modified"])

    def delete(self, key: str) -> None:
        with suppress(NotFound):
            self._done(key, lambda: obstore.delete(self._writes, key))

    def list(self, prefix: str) -> Iterator[tuple[str, Found]]:
        last = None
        pages = None

        def request() -> list[tuple[str, Found]]:
            nonlocal pages
            if pages is None:  # at first, and from the last key on after an error
                pages = obstore.list(self._reads, prefix.rstrip("/") or None, offset=last)
            try:
                page = next(pages, ())
            except BaseError:
                pages = None
                raise
            return [(meta["path"], Found(meta["size"], meta["last_modified"])) for meta in page]

        while page := self._done(None, request):
            last = page[-1][0]
            yield from ((key, metadata) for key, metadata in page if KEY.fullmatch(key))

    def now(self) -> datetime:
        date = self._done(PROBE_KEY, lambda: self._header("Date"))
        try:
            return parsedate_to_datetime(date).astimezone(UTC)
        except ValueError:
            raise Failed(f"{self._where}: the server tells no date") from None

    def server(self) -> str:
        name = self._done(PROBE_KEY, lambda: self._header("Server"))
        return f"{escape(name[:80], one_line=True)} at {self._where}"

    def _header(self, name: str) -> str:
        """Returns a header field of an answer, which obstore does not tell."""
        url = obstore.sign(self._reads, "HEAD", PROBE_KEY, timedelta(minutes=1))
        try:
            with urlopen(Request(url, method="HEAD"), timeout=READ_TIMEOUT.seconds) as answer:
                return str(answer.headers.get(name, ""))
        except HTTPError as error:
            return error.headers.get(name, "")
        except (OSError, HTTPException):
            raise Transient(Unreachable(f"{self._where} does not answer")) from None

    def _done(self, key: str | None, request: Callable[[], T]) -> T:
        """Returns what a request returns, which is sent again after a failure that may pass."""
        location = self.url if key is None else self.place(key)

        def once() -> T:
            try:
                return waited(request)
            except (BaseError, FileNotFoundError) as error:
                raise self._translated(location, error) from None

        return retry(once, self._patience_s)

    def _translated(self, location: str, error: Exception) -> Exception:
        """What to raise for an error of obstore."""
        text = str(error)
        said = _answer(error)
        where = self._where
        answer = " ".join(said)
        if NO_CREDENTIALS in text:
            return AccessDenied(f"{where}: no credentials; {SET_CREDENTIALS}")
        if "NoSuchBucket" in said:
            return AccessDenied(f"{where}: this bucket does not exist; create it")
        if REDIRECT in text or OTHER_REGION & {*said}:
            return AccessDenied(f"{where}: the bucket is in another region; give its region")
        if NO_ACCESS & {*said}:
            hint = f"{SET_CREDENTIALS}; they need to get, put, delete and list"
            return AccessDenied(
                f"{location}: the server refused the credentials ({answer}); {hint}"
            )
        if isinstance(error, FileNotFoundError):
            return NotFound(f"{location}: no such object")
        if "416" in said:
            return Corrupt(f"{location} ends early: the object is damaged")
        if TRY_AGAIN & {*said}:
            after = self._retry_after() if {"429", "503"} & {*said} else 0
            return Transient(
                Unreachable(f"{where} is not ready ({answer}); try again later"), after
            )
        if "InvalidCertificate" in text:
            return Failed(f"{where}: its certificate is not trusted; SSL_CERT_FILE can name a CA")
        if "kind: Connect" in text:
            unreachable = Unreachable(f"cannot connect to {where}; check network and endpoint")
            return Transient(unreachable, patience_s=CONNECT_PATIENCE_S)
        if not said and isinstance(error, GenericError):
            return Transient(Unreachable(f"{where} does not answer; check the network"))
        return Failed(f"{location}: the server answered {answer or type(error).__name__}")

    def _retry_after(self) -> int:
        """Returns how many seconds the server asks to wait."""
        with suppress(Transient, ValueError):
            return max(0, int(self._header("Retry-After")))
        return 0


def _answer(error: Exception) -> list[str]:
    """Returns HTTP status and error code in an error of obstore; nothing where no answer came."""
    matches = (pattern.search(str(error)) for pattern in (STATUS, CODE))
    return [match[1] for match in matches if match]
