"""What a provider does besides conversations: the wires of it, which are pure, and what drives them over HTTP."""
