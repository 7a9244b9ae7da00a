"""Secrets: values that must not be recorded."""
