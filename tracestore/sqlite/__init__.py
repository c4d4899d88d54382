"""How SQLite and aiosqlite want to be treated, one subject a module; `tracestore.sqlite.database` is made of them.

statements   what a function may do with a connection, in the connection's thread
thread       how a function gets there, and runs to its end whoever is cancelled
errors       what SQLite raises, as what the store raises
at_exit      what becomes of a connection that is open when the interpreter ends
library      which SQLite this is, and what that asks for
snapshot     a copy of a file while others write to it
"""
