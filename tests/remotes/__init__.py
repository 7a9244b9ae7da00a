"""Tests of casfs.remotes."""
