"""The FUSE protocol's structures, named as in the kernel's `include/uapi/linux/fuse.h`.

Only what a read-only file system sends and receives. Integers are in the machine's byte
order and naturally aligned, hence the explicit padding. `OPCODES` has every opcode so far, so
that refused requests are counted by name.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from casfs.fuse.views.vnode import Attr

KERNEL_VERSION = 7
KERNEL_MINOR_VERSION = 41
OLDEST_MINOR = 29  # Linux 5.1: the first with NO_OPENDIR_SUPPORT

OPCODES = {
    1: "lookup", 2: "forget", 3: "getattr", 4: "setattr", 5: "readlink", 6: "symlink", 8: "mknod",
    9: "mkdir", 10: "unlink", 11: "rmdir", 12: "rename", 13: "link", 14: "open", 15: "read",
    16: "write", 17: "statfs", 18: "release", 20: "fsync", 21: "setxattr", 22: "getxattr",
    23: "listxattr", 24: "removexattr", 25: "flush", 26: "init", 27: "opendir", 28: "readdir",
    29: "releasedir", 30: "fsyncdir", 31: "getlk", 32: "setlk", 33: "setlkw", 34: "access",
    35: "create", 36: "interrupt", 37: "bmap", 38: "destroy", 39: "ioctl", 40: "poll",
    41: "notify_reply", 42: "batch_forget", 43: "fallocate", 44: "readdirplus", 45: "rename2",
    46: "lseek", 47: "copy_file_range", 48: "setupmapping", 49: "removemapping", 50: "syncfs",
    51: "tmpfile", 52: "statx", 53: "copy_file_range_64",
}  # fmt: skip

# init flags
ASYNC_READ = 1 << 0
AUTO_INVAL_DATA = 1 << 12
DO_READDIRPLUS = 1 << 13
ASYNC_DIO = 1 << 15
NO_OPEN_SUPPORT = 1 << 17
PARALLEL_DIROPS = 1 << 18
MAX_PAGES = 1 << 22
CACHE_SYMLINKS = 1 << 23
NO_OPENDIR_SUPPORT = 1 << 24
INIT_EXT = 1 << 30
HAS_RESEND = 1 << 39

# notification codes, sent as the error of a reply to request 0
NOTIFY_POLL = 1
NOTIFY_INVAL_INODE = 2
NOTIFY_INVAL_ENTRY = 3
NOTIFY_RESEND = 7

POLL_SCHEDULE_NOTIFY = 1 << 0

in_header = struct.Struct("=IIQQIIIHH")  # len opcode unique nodeid uid gid pid total_extlen pad
out_header = struct.Struct("=IiQ")  # len error unique
init_in = struct.Struct("=IIII")  # major minor max_readahead flags
init_in_ext = struct.Struct("=I")  # flags2, where flags has INIT_EXT
init_out = struct.Struct("=IIIIHHIIHHII24x")  # … max_pages map_alignment flags2 max_stack_depth
attr = struct.Struct("=QQQQQQIIIIIIIIII")
entry_out = struct.Struct("=QQQQII")  # nodeid generation entry_valid attr_valid *_nsec; attr
attr_out = struct.Struct("=QII")  # attr_valid attr_valid_nsec dummy; attr
forget_in = struct.Struct("=Q")
batch_forget_in = struct.Struct("=II")
forget_one = struct.Struct("=QQ")
read_in = struct.Struct("=QQIIQII")  # fh offset size read_flags lock_owner flags pad
interrupt_in = struct.Struct("=Q")  # unique of the interrupted request
access_in = struct.Struct("=II")
getxattr_in = struct.Struct("=II")
getxattr_out = struct.Struct("=II")
lseek_in = struct.Struct("=QQII")  # fh offset whence pad
lseek_out = struct.Struct("=Q")
poll_in = struct.Struct("=QQII")  # fh kh flags events
poll_out = struct.Struct("=II")
notify_poll_wakeup_out = struct.Struct("=Q")
notify_inval_entry_out = struct.Struct("=QII")  # parent namelen flags; name and a NUL
notify_inval_inode_out = struct.Struct("=Qqq")  # ino off len
statfs_out = struct.Struct("=QQQQQIIII24x")
statx_out = struct.Struct("=QII16x")  # attr_valid attr_valid_nsec flags; statx
statx = struct.Struct("=IIQIIIH2xQQQQ" + "qI4x" * 4 + "IIII112x")
dirent = struct.Struct("=QQII")  # ino off namelen type; name, padded to 8 bytes
direntplus = struct.Struct("=QQQQIIQQQQQQIIIIIIIIIIQQII")  # entry_out, attr, dirent; name

STAT_BLOCK = 512  # the unit of st_blocks
BLOCK_SIZE = 4096
STATX_BASIC = 0x7FF
UINT64_MASK = (1 << 64) - 1
SECOND_NS = 1_000_000_000
PADDING = [bytes(-length % 8) for length in range(8)]


class Request(NamedTuple):
    unique: int
    ino: int
    uid: int
    gid: int
    body: memoryview


def timeout(seconds: float) -> tuple[int, int]:
    """Returns seconds and nanoseconds."""
    whole = int(seconds)
    return whole, int((seconds - whole) * SECOND_NS)


def pack_attr(ino: int, attributes: Attr, uid: int, gid: int) -> bytes:
    mode, size, mtime_ns, nlink = attributes
    seconds, nanos = divmod(mtime_ns, SECOND_NS)
    seconds &= UINT64_MASK
    blocks = -(-size // STAT_BLOCK)
    times = (seconds, seconds, seconds, nanos, nanos, nanos)
    return attr.pack(ino, size, blocks, *times, mode, nlink, uid, gid, 0, BLOCK_SIZE, 0)


def pack_statx(ino: int, attributes: Attr, uid: int, gid: int) -> bytes:
    """Without a birth time: the store does not keep one."""
    mode, size, mtime_ns, nlink = attributes
    time = divmod(mtime_ns, SECOND_NS)
    blocks = -(-size // STAT_BLOCK)
    fixed = (STATX_BASIC, BLOCK_SIZE, 0, nlink, uid, gid, mode, ino, size, blocks, 0)
    return statx.pack(*fixed, *time, 0, 0, *time, *time, 0, 0, 0, 0)


def pack_entry(nodeid: int, entry_timeout: float, attr_timeout: float, attributes: bytes) -> bytes:
    entry = timeout(entry_timeout)
    attrs = timeout(attr_timeout)
    return entry_out.pack(nodeid, 0, entry[0], attrs[0], entry[1], attrs[1]) + attributes


def pack_dirent(ino: int, offset: int, kind: int, name: bytes) -> bytes:
    return dirent.pack(ino, offset, len(name), kind) + name + PADDING[len(name) & 7]


def pack_direntplus(
    nodeid: int,
    entry: tuple[int, Attr, float, float],
    offset: int,
    name: bytes,
    owner: tuple[int, int],
) -> bytes:
    """Packs everything by one call: nothing is packed more often. `entry`: number, attributes,
    their timeout and the name's, both in whole seconds here."""
    ino, (mode, size, mtime_ns, nlink), attr_timeout, entry_timeout = entry
    seconds, nanos = divmod(mtime_ns, SECOND_NS)
    seconds &= UINT64_MASK
    length = len(name)
    packed = direntplus.pack(
        nodeid, 0, int(entry_timeout), int(attr_timeout), 0, 0,
        ino, size, -(-size // STAT_BLOCK), seconds, seconds, seconds, nanos, nanos, nanos,
        mode, nlink, *owner, 0, BLOCK_SIZE, 0,
        ino, offset, length, mode >> 12 & 15,
    )  # fmt: skip
    return packed + name + PADDING[length & 7]


def pack_inval_inode(ino: int) -> bytes:
    """Of all pages of an inode: the content of a file, the listing of a directory."""
    return notify_inval_inode_out.pack(ino, 0, 0)


def pack_inval_entry(parent: int, name: bytes) -> bytes:
    return notify_inval_entry_out.pack(parent, len(name), 0) + name + b"\0"
