"""The store: nodes by their hash, heads by their name, what is written together."""
