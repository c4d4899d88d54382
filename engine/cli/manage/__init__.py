"""Commands that look after models, prices and trace files."""
