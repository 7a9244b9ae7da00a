"""Differences between two trees: patches, line diffs, statistics."""
