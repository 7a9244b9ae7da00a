"""Git repositories inside recorded directories: what is tracked, and which objects are private."""
