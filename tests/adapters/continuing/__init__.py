"""Interrupted replies are continued. The provider records its requests."""
