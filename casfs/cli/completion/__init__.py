"""Completion of commands, options and values in bash, zsh and fish, without importing a command."""
