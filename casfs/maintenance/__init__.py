"""Maintenance of a whole store: gc, integrity check and repair, archives, search."""
