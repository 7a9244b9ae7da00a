"""Worktrees: full copies of a project to work in side by side, each with a branch of its own."""
