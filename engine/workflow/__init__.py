"""Workflow definitions and their registry."""
