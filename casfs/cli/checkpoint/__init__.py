"""The commands of checkpoints: directories recorded under a name."""
