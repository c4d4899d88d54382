"""Cohere's embedding models."""
