"""The version of this program, which its processes record."""

VERSION = "0.1.0"
