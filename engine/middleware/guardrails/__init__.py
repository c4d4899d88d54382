"""Guardrails: a reply's text is held back by a window, looked at, and passed, changed or stopped."""
