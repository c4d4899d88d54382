"""Going on with a reply that broke off, against a provider that keeps books."""
