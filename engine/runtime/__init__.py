"""One thread's run: what an agent is given, what it left, and what becomes a step."""
