"""Real programs of npm as clients of the gateway."""
