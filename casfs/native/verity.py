"""Objects as a layer of a native mount: nobody may write to them while the kernel serves them.

Through such a mount the kernel reads `objects/` without us, so nothing is verified on the
way. What keeps the bytes what they are: the directories and the files belong to the user who
mounts, and nobody has write permission (`check`, `Seal`); and, where the kernel and the file
system have it, fs-verity, by which the kernel verifies what it reads and refuses every
write, even root's. It is tried on the first object that an image needs, and for the rest of
them where that went well; it is switched on for good. Where there is none, `casfs fsck` is
the answer: it reads every object and finds what is not what its name says.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from pathlib import Path

from casfs.errors import Failed, NotFound

ENABLE_VERITY = 0x4080_6685  # FS_IOC_ENABLE_VERITY of linux/fsverity.h
VERITY = struct.pack("<IIIIQIIQ88x", 1, 1, 4096, 0, 0, 0, 0, 0)  # SHA-256 over blocks of 4 KiB
WRITABLE = 0o222
OTHERS = 0o022


def check(objects: Path) -> None:
    """Raises Failed where another user could put a file there, or take one away."""
    user = os.geteuid()
    try:
        with os.scandir(objects) as shards:
            folders = [objects.parent, objects, *(Path(shard.path) for shard in shards)]
        for folder in folders:
            info = folder.lstat()
            if not stat.S_ISDIR(info.st_mode) or info.st_uid != user or info.st_mode & OTHERS:
                raise Failed(
                    f"{folder} is not this user's (uid {user}) alone to write; a mount without"
                    " a process of ours needs that"
                )
    except OSError as error:
        raise Failed(f"cannot look at {objects}: {error.strerror}") from None


class Seal:
    """Makes objects safe to be a layer, one by one. `verity` is False as soon as it is known that
    there is none here."""

    def __init__(self, objects: Path) -> None:
        self._prefix = f"{objects}/"
        self._user = os.geteuid()
        self.verity = True

    def __call__(self, hash: str) -> None:
        """Raises NotFound (no such file), Failed (another user's)."""
        path = f"{self._prefix}{hash[:2]}/{hash[2:]}"
        try:
            info = os.lstat(path)
            if not stat.S_ISREG(info.st_mode) or info.st_uid != self._user:
                raise Failed(f"{path} is not a file of this user (uid {self._user})")
            if info.st_mode & WRITABLE:
                os.chmod(path, 0o444)
            if self.verity:
                self.verity = _enable(path)
        except FileNotFoundError:
            raise NotFound(f"blob {hash}: its file is missing; run `casfs fsck`") from None
        except OSError as error:
            raise Failed(f"cannot make {path} safe: {error.strerror}") from None


def _enable(path: str) -> bool:
    """Switch fs-verity on. False where that cannot be, whoever is to blame. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, ENABLE_VERITY, VERITY)
    except OSError as error:
        return error.errno == errno.EEXIST  # switched on already
    finally:
        os.close(fd)
    return True
