"""Storage backends: the interfaces, and their implementation on disk."""
