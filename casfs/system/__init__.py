"""The operating system: mounts, processes, locks, files, signals, logs."""
