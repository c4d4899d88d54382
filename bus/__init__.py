"""What is said, and how it is carried.

Canonical values (messages, content blocks, stream events, usage, errors), the event catalogue, the bus, actors
and their supervisors, and the streaming channel. Knows no provider, no price and no database.
"""
