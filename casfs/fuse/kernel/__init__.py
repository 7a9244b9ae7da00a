"""The built-in transport: the FUSE protocol on /dev/fuse."""
