"""The command line: one file per noun."""

import gc

# Imports and a command allocate many objects and hardly any cycles: with the default threshold of
# 700 some tenth of the time of a short command would be spent looking for them.
gc.set_threshold(100_000)
