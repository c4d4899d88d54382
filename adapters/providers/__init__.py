"""One folder for each provider's protocol; none imports another."""
