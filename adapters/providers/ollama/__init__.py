"""Ollama's own API, `/api/chat` and `/api/embed`. (Its `/v1` is served by `openai_compatible`.)"""
