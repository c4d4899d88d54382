"""What a host holds of a conversation: opened, resumed, carried elsewhere."""
