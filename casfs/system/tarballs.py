"""Reading tarballs that may be damaged or crafted.

Python's tarfile takes a header that is cut or has a bad checksum as the end of the archive, lets
Python's own errors out for crafted ones, and never reads the checksum of a gzip file.
"""

from __future__ import annotations

import lzma
import tarfile
import zlib
from typing import Any

READ_BYTES = 1 << 20


class Member(tarfile.TarInfo):
    """A member whose header is sound; give it to `tarfile.open` as `tarinfo`."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Member:
        """Raises ReadError for every bad header, EOFHeaderError at the end mark."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # not in the stubs
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} at byte {tarfile_.offset}") from None
        except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError):
            raise
        except Exception as error:  # whatever a crafted header makes of tarfile
            raise tarfile.ReadError(f"a bad header at byte {tarfile_.offset}: {error!r}") from None


def read_to_end(tar: tarfile.TarFile) -> None:
    """Reads what is behind the end mark, and so the checksum of the compression."""
    stream: Any = tar.fileobj
    while stream.read(READ_BYTES):
        pass
