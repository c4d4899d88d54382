"""What the commands share: options, tables, screens, logs."""
