"""What the field notes on servers say, tried on the adapters."""
