"""Voyage AI's embedding models."""
