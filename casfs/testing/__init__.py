"""For authors of agents and backends: a fake context, conformance suites, fault injection.

An agent is tested with `run_agent` (docs/python.md), against a store in memory and without a
daemon.

A backend conforms when it passes the suites of `blobs_contract`, `heads_contract` and
`journal_contract`. Each has a list CONTRACT of checks, functions of a factory that returns a
new empty backend (they need pytest):

    @pytest.mark.parametrize("check", heads_contract.CONTRACT, ids=lambda check: check.__name__)
    def test_heads(check, make_backend):
        check(make_backend)

`faults.Faults` makes a backend fail where a test orders it.
"""

from casfs.testing.agents import AgentRun, fake_context, run_agent

__all__ = ["AgentRun", "fake_context", "run_agent"]
