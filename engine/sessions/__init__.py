"""Sessions: the handle that a host holds of a conversation, and sessions opened, resumed, carried elsewhere."""
