"""The MCP server: agents read the store by tools and resources, and act where that is allowed.

A tool is a method of `casfs.mcp.reading.Reading` or `casfs.mcp.writing.Writing`, in its module's
list of tools. Its annotations are the schema of the arguments (`casfs.mcp.values`), its docstring
is what an agent reads of it. It runs in a worker thread and returns JSON; a member `text` is
shown as text. Errors of `casfs.errors` are results, never faults of the protocol.
`casfs.mcp.server` alone imports the SDK, which the extra `mcp` installs.
"""
