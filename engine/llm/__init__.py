"""The agents that talk to a language model: the protocol, the loop, the tools, the sandbox."""
