"""Workspaces: trees as writable directories, by an overlay or a copy."""
