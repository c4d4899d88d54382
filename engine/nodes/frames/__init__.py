"""Streams that are read on another host: frames of merged deltas, mirrors of logs, and what a taker finds in
them."""
