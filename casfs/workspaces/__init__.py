"""A tree as a writable directory that costs nothing to open and only its changes to record."""
