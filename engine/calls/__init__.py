"""A call: one request to one model, with all its attempts and exactly one end."""
