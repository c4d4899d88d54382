"""Actors, their tasks and their supervisors."""
