"""The action cache: commands and steps whose results are replayed instead of run again."""
