"""The fault lab runs the engine against a server that breaks its replies.

`plan` derives all faults from a seed, `server` and `replies` are the server, `round` and `chaos` run the engine,
and `checks` checks the invariants afterwards.
"""
