"""Serving a mount: the supervisor, its worker, and the mounts of this machine."""
