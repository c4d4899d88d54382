"""Actors, the tasks below them, and the supervisors above them."""
