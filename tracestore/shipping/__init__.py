"""From the trace file of a machine to a shared store, without losing or duplicating events."""
