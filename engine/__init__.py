"""The workflow engine: decides which role is next, runs its agent, records the step."""
