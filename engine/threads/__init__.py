"""Threads as they are written and read back: the only writer of their heads is in here."""
