"""Heads that travel between stores: by a remote, a clone, an archive."""
