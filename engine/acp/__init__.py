"""Agents that speak the Agent Client Protocol: newline-delimited JSON-RPC over stdio."""
