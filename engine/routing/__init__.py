"""Routing: the models that may serve a call, their availability and rate limits, and the choice between them."""
