"""The writer, which stores the events of the bus in batches. It loses an event only if memory and spill file are
full.
"""
