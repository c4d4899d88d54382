"""From the trace file of a machine to a store that many machines share, losing and doubling nothing."""
