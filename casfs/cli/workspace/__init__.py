"""The commands of `casfs workspace`."""
