"""JSON Schemas as their targets take them."""
