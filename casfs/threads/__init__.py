"""Threads (runs of a workflow): what they record, and what is read from it."""
