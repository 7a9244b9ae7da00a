"""Tree to host directory."""
