"""Sessions of outside agents, recorded as threads from what their hooks report."""
