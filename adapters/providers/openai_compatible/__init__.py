"""Chat Completions: OpenAI's older protocol, and what nearly every other server speaks, differences as data."""
