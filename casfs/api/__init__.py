"""The Python API: what `import casfs` gives (docs/python.md), over the modules of the trunk."""
