"""Chat Completions: OpenAI's older protocol, which nearly every other server speaks. The differences are data."""
