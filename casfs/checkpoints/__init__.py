"""Checkpoints: a tree root at a point in time, under a name."""
