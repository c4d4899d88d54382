"""What an engine tells of itself while it works: what is under way, when something changed, what would be sent."""
