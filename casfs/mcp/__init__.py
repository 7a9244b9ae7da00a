"""The MCP server: agents read the store by tools and resources, and act where that is allowed.

A tool is a method of `Reading` or `Writing`, in its module's TOOLS: its annotations are the schema
of its arguments, its docstring what an agent reads of it. It runs in a worker thread and returns
JSON; a member `text` is shown as text. `casfs.mcp.server` alone imports the SDK.
"""
