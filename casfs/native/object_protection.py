"""Protects objects from writes while the kernel serves them as a layer of a native mount.

Through such a mount the kernel reads `objects/` without us, so the content is not verified.
Its integrity depends on permissions: the directories and the files belong to the user who
mounts, without write permission (`check_owner`, `ObjectProtector`); and, where the kernel and
the file system have it, on fs-verity, by which the kernel verifies what it reads and refuses
every write, even root's. It is tried on the first object that an image needs, and for the rest
where that succeeded; it is enabled for good. Size and kind of each
object are looked at when an image is made. Without fs-verity, `casfs fsck` reads every object and
finds the damaged ones.

Packs that are devices of an image are protected by permissions alone (`check_devices`), since with
fs-verity gc could free nothing in them. A device may also be an object: a source of the blocks of
a mapped file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from casfs.digest import is_hash
from casfs.errors import CorruptBlob, Failed, NotFound
from casfs.native.erofs.model import BLOCK, Device
from casfs.system.files import os_errors
from casfs.system.paths import FILE_FLAGS

FS_IOC_ENABLE_VERITY = 0x4080_6685  # linux/fsverity.h
VERITY_OPTIONS = struct.pack(
    "<IIIIQIIQ88x", 1, 1, 4096, 0, 0, 0, 0, 0
)  # SHA-256 over blocks of 4 KiB
PACK_SUFFIX = ".pack"
ANY_WRITE = 0o222
SHARED_WRITE = 0o022


def check_owner(objects: Path) -> None:
    """Raises Failed where another user could add or remove objects."""
    with os_errors(f"cannot look at {objects}"):
        with os.scandir(objects) as shards:
            folders = [objects.parent, objects, *(Path(shard.path) for shard in shards)]
        for folder in folders:
            _check_folder(folder, folder.lstat())


def _check_folder(folder: Path, info: os.stat_result) -> None:
    user = os.geteuid()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != user or info.st_mode & SHARED_WRITE:
        raise Failed(
            f"{folder} is not this user's (uid {user}) alone to write; a mount without"
            " a process of ours needs that"
        )


def device_path(root: Path, name: str) -> Path:
    """Returns the file of the store `root` that an image names: a pack, else an object."""
    pack = root / "packs" / f"{name}{PACK_SUFFIX}"
    return pack if pack.exists() else root / "objects" / name[:2] / name[2:]


def check_devices(root: Path, devices: Iterable[Device]) -> Iterator[Path]:
    """Yields the files of the store `root` that are those devices. Raises FileNotFoundError for one
    that is gone, Failed where another user could write to it, or its length is another."""
    for device in devices:
        path = device_path(root, device.name)
        for folder in (root, path.parent):
            _check_folder(folder, folder.lstat())
        info = path.lstat()
        mine = info.st_uid == os.geteuid() and not info.st_mode & ANY_WRITE
        whole = -(-info.st_size // BLOCK) == device.blocks
        if not (stat.S_ISREG(info.st_mode) and mine and whole and is_hash(device.name)):
            raise Failed(f"{path} is not a read-only file of this user; run `casfs fsck`")
        yield path


class ObjectProtector:
    """Makes objects read-only, one by one. `verity` is False as soon as fs-verity is known to be
    unavailable."""

    def __init__(self, objects: Path) -> None:
        self._prefix = f"{objects}/"
        self._user = os.geteuid()
        self.verity = True

    def protect(self, hash: str, size: int) -> None:
        """Raises NotFound (no such file), CorruptBlob (of another size), Failed (another user's,
        or not a regular file)."""
        path = f"{self._prefix}{hash[:2]}/{hash[2:]}"
        try:
            info = os.lstat(path)
            if not stat.S_ISREG(info.st_mode) or info.st_uid != self._user:
                raise Failed(f"{path} is not a file of this user (uid {self._user})")
            if info.st_size != size:
                wrong = f"blob {hash}: its file is not {size} bytes long"
                raise CorruptBlob(f"{wrong}; run `casfs fsck`")
            if info.st_mode & ANY_WRITE:
                os.chmod(path, 0o444)
            if self.verity:
                self.verity = _enable_verity(path)
        except FileNotFoundError:
            raise NotFound(f"blob {hash}: its file is missing; run `casfs fsck`") from None
        except OSError as error:
            raise Failed(f"cannot protect {path}: {error.strerror}") from None


def _enable_verity(path: str) -> bool:
    """Enables fs-verity. Returns False where it is unavailable. Raises OSError."""
    fd = os.open(path, FILE_FLAGS)
    try:
        fcntl.ioctl(fd, FS_IOC_ENABLE_VERITY, VERITY_OPTIONS)
    except OSError as error:
        return error.errno == errno.EEXIST  # enabled already
    finally:
        os.close(fd)
    return True
