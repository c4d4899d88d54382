"""The pool of connections and the sockets under it."""
