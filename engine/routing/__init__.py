"""Routing: the models that may serve a call, their availability, and the choice of one of them."""
