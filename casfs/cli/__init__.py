"""The command line: one file per noun."""

from casfs.system import cycles

cycles.search_rarely()
