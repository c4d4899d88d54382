"""The parts of the kill loop: a process that makes calls until it is killed, and what must stand in its file."""
