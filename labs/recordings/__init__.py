"""What the adapters make of recorded traffic of real providers, and what they should."""
