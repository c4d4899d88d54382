"""The processes that wrote a trace: which live, which died, who owns a session."""
