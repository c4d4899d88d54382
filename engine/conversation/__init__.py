"""A turn: the messages to a model, its replies, and the tool rounds between them."""
