"""Images and videos, traced and priced like every call."""
