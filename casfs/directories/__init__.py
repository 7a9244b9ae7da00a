"""Directories of a person: where each one is, and what casfs has written into it."""
