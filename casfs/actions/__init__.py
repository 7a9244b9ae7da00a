"""Commands whose outcome is kept, and brought back instead of being run again."""
