"""`casfs thread`."""
