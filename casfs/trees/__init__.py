"""Merkle trees of directory nodes: listed, compared, recorded from a directory, restored."""
