"""The shared parts of the commands: options, tables, screens, logs."""
