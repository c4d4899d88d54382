"""Calls other than conversations: embeddings, images, videos, batches, and background replies."""
