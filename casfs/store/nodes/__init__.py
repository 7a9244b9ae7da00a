"""Typed JSON nodes: their schemas, what is checked, and where their references are."""
