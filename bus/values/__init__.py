"""Messages, their content, usage and costs."""
