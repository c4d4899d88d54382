"""Sessions: the host's handle of a conversation, and how sessions are opened, resumed and moved."""
