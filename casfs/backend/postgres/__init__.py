"""The shared backend: PostgreSQL and object storage, with a local cache on each machine."""
