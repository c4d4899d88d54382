"""Programs that use the gateway through a library. `labs.clients.libraries` runs them in another environment.

Each does four tasks over each API that the library has: a text, a stream, a loop with a tool, and an answer that
follows a schema. The model is `libraries.LibraryModel`.
"""
