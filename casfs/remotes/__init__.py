"""Remotes: stores at another place, as packs and a log in an object storage."""
