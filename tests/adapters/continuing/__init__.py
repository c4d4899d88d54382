"""Replies that broke off are continued, against a provider that records its requests."""
