"""The commands of `casfs workflow`."""
