"""Streams that other nodes read: frames, mirrors of logs, and the messages for a takeover."""
