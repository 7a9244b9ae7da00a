"""The pyfuse3 transport: libfuse3 under trio."""
