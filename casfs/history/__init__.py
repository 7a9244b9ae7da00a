"""The history of a tree: which step or checkpoint wrote a line, and which changed a path."""
