"""The HTTP/1.1 client under whatever a server may send: replies of every form, broken ones, and many at once."""
