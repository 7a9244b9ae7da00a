"""Native trees: EROFS images that the kernel mounts without a process of ours."""
