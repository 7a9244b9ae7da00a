"""The names of the strategies (`casfs.workspaces.strategies`), for who does not use them."""

NATIVE = "erofs-overlay"
OVERLAY = "overlay"
FUSE = "fuse-overlayfs"
COPY = "copy"
PREFERRED_FIRST = (NATIVE, OVERLAY, FUSE, COPY)
