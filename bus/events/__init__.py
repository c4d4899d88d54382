"""What happens, as typed events: what an event and its envelope are, and the catalogue."""
