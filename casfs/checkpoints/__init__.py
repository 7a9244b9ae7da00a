"""Checkpoints: a tree root at a moment, under a name."""
