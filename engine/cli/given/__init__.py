"""What a person types or names for a question, as values: the prompt, attachments, a schema, options, tools."""
