"""Model agents: client of the protocol, reactor loop, tools, sandbox, extractor model."""
