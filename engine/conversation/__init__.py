"""One turn: what is said to a model, its reply, and the tool rounds between."""
