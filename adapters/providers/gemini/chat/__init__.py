"""Gemini's conversations, ``generateContent``: how a request is written, and how its reply is read."""
