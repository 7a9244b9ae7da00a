"""The commands of `casfs worktree`."""
