"""What happens, as typed events: the catalogue."""
