"""Host directory to tree."""
