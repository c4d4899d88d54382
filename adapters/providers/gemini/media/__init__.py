"""Gemini's models for images and videos."""
