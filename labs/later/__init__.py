"""kill -9 of programs with batches and background replies, at providers that record requests and lose
responses.
"""
