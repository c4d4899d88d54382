"""Readers of a stream: each has its own pace, and its own place from the first event on."""
