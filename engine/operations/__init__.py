"""Calls besides conversations: embeddings, images, videos, batches, and replies made in the background."""
