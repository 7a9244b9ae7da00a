"""The pack format: many blobs in one immutable file (`docs/format.md`)."""
