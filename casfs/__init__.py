"""casfs: everything an agent team produces, content-addressed and shown as files."""

__version__ = "0.1.0"
