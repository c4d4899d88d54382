"""The pool of connections and its sockets."""
