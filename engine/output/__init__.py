"""The output of an agent, and the meta that is in it."""
