"""The conformance suites of backends, and fault injection.

A backend conforms when it passes the suites of `blobs_contract`, `heads_contract`,
`journal_contract` and, if it can purge, `purge_contract`. Each has a list CONTRACT of checks,
functions of a factory that returns a new empty backend:

    @pytest.mark.parametrize("check", heads_contract.CONTRACT, ids=lambda check: check.__name__)
    def test_heads(check, make_backend):
        check(make_backend)

`faults.Faults` makes a backend fail where a test orders it.
"""
