"""Streams that are read on another node: frames, mirrors of logs, and a takeover's messages."""
