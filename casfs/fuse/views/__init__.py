"""The directories of the mount, as a model that knows nothing of FUSE."""
