"""The stored state of threads: their records, and the only writers of their heads."""
