"""The command `reprice`, and its page."""
