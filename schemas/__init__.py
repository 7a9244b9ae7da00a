"""The node types of casfs, one JSON Schema 2020-12 document per file; data only."""
