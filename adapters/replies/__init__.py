"""From the bytes of a reply to canonical events."""
