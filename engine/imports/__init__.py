"""The past that others recorded: calls from the files of other programs, in the trace of this one."""
