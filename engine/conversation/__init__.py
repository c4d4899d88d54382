"""One turn: the messages to a model, its reply, and the tool rounds between."""
