"""Recording and replaying what goes over HTTP to a provider."""
