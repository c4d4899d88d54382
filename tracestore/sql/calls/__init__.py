"""What is asked of the calls in a trace: the calls themselves, their sums, and their statistics."""
