"""JSON Schemas in the forms of their targets."""
