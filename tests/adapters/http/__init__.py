"""One call over HTTP: attempts, time limits, health, addresses and keys."""
