"""Wires of several providers: OpenAI's embeddings, images, videos and batches, and Cohere's embeddings."""
