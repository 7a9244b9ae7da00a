"""Differences between trees: patches, line diffs, statistics, three-way merges."""
