"""Wires that more than one provider speaks: OpenAI's embeddings, images and videos, and Cohere's embeddings."""
