"""One thread's run: an agent's context, its result, and the step made of it."""
