"""Merkle trees of directory nodes: looked at, compared, recorded from disk, brought back."""
