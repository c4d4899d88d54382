"""The parts of the kill loop: a process that makes calls until it is killed, and the checks of its trace file."""
