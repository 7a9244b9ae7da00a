"""For authors of agents: a fake context, and `run_agent`.

An agent is tested with `run_agent` (docs/python.md), against a store in memory and without a
daemon.
"""

from casfs.testing.agents import AgentRun, fake_context, run_agent

__all__ = ["AgentRun", "fake_context", "run_agent"]
