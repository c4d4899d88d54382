"""Commands that ask models: conversations, vectors, images, videos."""
