"""Secrets: which values they are, and their redaction in all that is recorded."""
