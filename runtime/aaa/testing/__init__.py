"""What proves a store: the conformance suite, its harness, a clock to turn by hand.

Nothing in ``aaa`` itself imports this package.
"""
