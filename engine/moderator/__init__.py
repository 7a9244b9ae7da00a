"""The moderator: decides the next role by a workflow's rules."""
