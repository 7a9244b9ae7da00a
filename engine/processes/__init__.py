"""Subprocesses of agents: started, limited, and ended with their attempt."""
