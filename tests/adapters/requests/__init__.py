"""The parts of requests that all wires share: history, settings, schemas, media."""
