"""Outside agents that report to a store: their settings, the hook program, the spool."""
