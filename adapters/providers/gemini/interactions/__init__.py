"""Gemini's Interactions API, stateless: a conversation as steps, in the place of generateContent's contents."""
