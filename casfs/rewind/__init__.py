"""Taking back what an outside agent did: its files, and its conversation."""
