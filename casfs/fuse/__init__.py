"""The mount: a pure model of what each directory holds, under a thin FUSE adapter."""
