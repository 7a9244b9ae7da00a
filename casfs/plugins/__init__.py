"""Plugins: dependency trees of a name and version, stored once."""
