"""What is said: messages, their content, usage and costs."""
