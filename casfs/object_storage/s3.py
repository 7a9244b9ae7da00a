"""An S3 bucket as object storage, by obstore.

obstore's own retries are off: they neither tell that an earlier try may have reached the server nor
end when the work is interrupted. Its errors hold what the server said, so their text goes into no
message but the status and the error code of S3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import S3Store

from casfs.errors import AccessDenied, Corrupt, Failed, NotFound, Unreachable
from casfs.object_storage import credentials
from casfs.object_storage.interface import KEY, MAX_OBJECT_BYTES, Found, ObjectStorage
from casfs.object_storage.retrying import Passing, retry
from casfs.system.safe_text import escape
from casfs.version import VERSION

T = TypeVar("T")
CONNECT_PATIENCE_S = 5.0  # a server that is not there at all is soon given up
READ_TIMEOUT = timedelta(seconds=30)  # without a byte
TIMEOUT = timedelta(minutes=15)  # of one request
MULTIPART_BYTES = 32 << 20  # from here on a file is sent in parts
PART_BYTES, PARTS_AT_ONCE = 16 << 20, 3
PROBE_KEY = "casfs-probe"
SIGNED_FOR = timedelta(minutes=1)

STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>(\w{1,64})</Code>")
TRY_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}
THROTTLED = {429, 503}
TRY_AGAIN_CODES = {"RequestTimeout", "SlowDown"}
BAD_CREDENTIALS = {"ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "TokenRefreshRequired"}
REDIRECT = "redirect without LOCATION"  # the answer where the bucket is in another region
OTHER_REGION_CODES = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
NO_CREDENTIALS = "latest/api/token"  # where the client looks last: a machine of AWS
SET_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


class S3Storage(ObjectStorage):
    """Objects of a bucket, below a prefix. `patience_s` bounds the retries of a request."""

    def __init__(
        self,
        url: str,
        bucket: str,
        prefix: str,
        endpoint: str | None,
        region: str | None,
        patience_s: float,
    ) -> None:
        super().__init__(url)
        self._patience_s = patience_s
        given = credentials.access()
        endpoint, region = endpoint or given.endpoint, region or given.region
        self._where = f"{url} at {endpoint}" if endpoint else url

        def client(read_timeout: timedelta) -> S3Store:
            return S3Store(
                bucket,
                prefix=prefix or None,
                config={
                    **({"endpoint": endpoint} if endpoint else {}),
                    **({"region": region} if region else {}),
                    "disable_bulk_delete": True,  # not every server has it
                },
                client_options={
                    "allow_http": (endpoint or "").startswith("http://"),
                    "user_agent": f"casfs/{VERSION}",
                    "timeout": TIMEOUT,
                    "read_timeout": read_timeout,
                },
                retry_config={"max_retries": 0},
                credential_provider=given.credential,
            )

        self._reads, self._writes = (
            client(READ_TIMEOUT),
            client(TIMEOUT),
        )  # no byte until all is sent

    def get(self, key: str, max_size: int = MAX_OBJECT_BYTES) -> bytes:
        def request() -> bytes:
            found = obstore.get(self._reads, key)
            self.bounded(key, found.meta["size"], max_size)
            return bytes(found.bytes())

        return self._done(key, request)

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        if size == 0:
            return b""
        found = self._done(
            key, lambda: bytes(obstore.get_range(self._reads, key, start=offset, length=size))
        )
        return self.exactly(key, found, size)

    def get_tail(self, key: str, size: int) -> tuple[bytes, int]:
        def request() -> tuple[bytes, int]:
            found = obstore.get(self._reads, key, options={"range": {"suffix": size}})
            total = found.meta["size"]
            start, end = found.range
            self.bounded(key, end - start, size)
            return self.exactly(key, bytes(found.bytes()), min(size, total)), total

        return self._done(key, request)

    def put(self, key: str, data: bytes | Path) -> None:
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        self._done(
            key,
            lambda: obstore.put(
                self._writes,
                key,
                data,
                use_multipart=size >= MULTIPART_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            ),
        )

    def put_if_absent(self, key: str, data: bytes) -> bool:
        def request() -> bool:
            try:
                obstore.put(self._writes, key, data, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                if _status(error)[0] != 412:  # 409: another put of this key is under way
                    raise
                try:
                    return self.get(key, len(data)) == data
                except Corrupt:  # larger
                    return False
                except NotFound:
                    gone = Unreachable(f"{self.place(key)} exists and does not: try again")
                    raise Passing(gone) from None
            return True

        return self._done(key, request)

    def head(self, key: str) -> Found | None:
        def request() -> Found:
            found = obstore.head(self._reads, key)
            return Found(found["size"], found["last_modified"])

        try:
            return self._done(key, request)
        except NotFound:
            return None

    def delete(self, key: str) -> None:
        with suppress(NotFound):
            self._done(key, lambda: obstore.delete(self._writes, key))

    def list(self, prefix: str) -> Iterator[tuple[str, Found]]:
        last: str | None = None
        pages = None

        def request() -> list[tuple[str, Found]]:
            nonlocal pages
            if pages is None:  # at first, and from the last key on after an error
                pages = obstore.list(self._reads, prefix.rstrip("/") or None, offset=last)
            try:
                page = next(pages, None)
            except BaseError:
                pages = None
                raise
            return [(o["path"], Found(o["size"], o["last_modified"])) for o in page or ()]

        while page := self._done(None, request):
            last = page[-1][0]
            yield from ((key, found) for key, found in page if KEY.fullmatch(key))

    def now(self) -> datetime:
        def request() -> datetime:
            if date := self._header("Date"):
                with suppress(ValueError):
                    return parsedate_to_datetime(date).astimezone(UTC)
            obstore.put(self._writes, PROBE_KEY, b"")
            return obstore.head(self._reads, PROBE_KEY)["last_modified"]

        return self._done(PROBE_KEY, request)

    def server(self) -> str:
        name = self._done(PROBE_KEY, lambda: self._header("Server"))
        return f"{escape(name[:80], one_line=True)} at {self._where}"

    def _header(self, name: str) -> str:
        """Returns a header field of the answer to a small request: obstore gives none."""
        url = obstore.sign(self._reads, "HEAD", PROBE_KEY, SIGNED_FOR)
        try:
            with urlopen(Request(url, method="HEAD"), timeout=READ_TIMEOUT.seconds) as answer:
                return str(answer.headers.get(name, ""))
        except HTTPError as error:
            return error.headers.get(name, "")
        except (OSError, HTTPException):
            raise Passing(Unreachable(f"{self._where} does not answer")) from None

    def _done(self, key: str | None, request: Callable[[], T]) -> T:
        """Returns what a request returns, which is sent again after a failure that may pass."""
        place = self.url if key is None else self.place(key)

        def once() -> T:
            try:
                return request()
            except (BaseError, FileNotFoundError) as error:
                raise self._judged(place, error) from None

        return retry(once, self._patience_s)

    def _judged(self, place: str, error: Exception) -> Exception:
        """What to raise for an error of obstore."""
        status, code = _status(error)
        where, answer = self._where, f"{status} {code}".strip()
        if NO_CREDENTIALS in str(error):
            return AccessDenied(f"{where}: no credentials; {SET_CREDENTIALS}")
        if code == "NoSuchBucket":
            return AccessDenied(f"{where}: this bucket does not exist; create it")
        if REDIRECT in str(error) or code in OTHER_REGION_CODES:
            return AccessDenied(f"{where}: the bucket is in another region; give its region")
        if status in (401, 403) or code in BAD_CREDENTIALS:
            hint = f"{SET_CREDENTIALS}; they need to get, put, delete and list"
            return AccessDenied(f"{place}: the server refused the credentials ({answer}); {hint}")
        if isinstance(error, FileNotFoundError):
            return NotFound(f"{place}: no such object")
        if status == 416:
            return Corrupt(f"{place} ends early: the object is damaged")
        if status in TRY_AGAIN or code in TRY_AGAIN_CODES:
            after = self._retry_after() if status in THROTTLED else 0
            return Passing(Unreachable(f"{where} is not ready ({answer}); try again later"), after)
        if status:
            return Failed(f"{place}: the server answered {answer}")
        if "kind: Connect" in str(error):
            text = f"cannot connect to {where}; check network and endpoint"
            return Passing(Unreachable(text), patience_s=CONNECT_PATIENCE_S)
        if isinstance(error, GenericError):
            return Passing(Unreachable(f"{where} does not answer; check the network"))
        return Failed(f"{place}: {type(error).__name__} of the S3 client")

    def _retry_after(self) -> int:
        """Returns how many seconds the server asks to wait."""
        with suppress(Passing, ValueError):
            return max(0, int(self._header("Retry-After")))
        return 0


def _status(error: Exception) -> tuple[int, str]:
    """Returns HTTP status and error code of S3 in an error of obstore: 0 and "" where no answer
    came."""
    text = str(error)
    status, code = STATUS.search(text), CODE.search(text)
    return int(status[1]) if status else 0, code[1] if code else ""
