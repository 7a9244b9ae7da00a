"""The built-in agents and the loader of agent packages."""
