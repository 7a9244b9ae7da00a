"""The moderator: which role is next."""
