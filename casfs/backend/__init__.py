"""Storage backends: the interfaces, and their implementations in memory and on disk."""
