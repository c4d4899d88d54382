"""Routing: the models that may serve a call, how they stand, and the choice of one of them."""
