"""Wires that several providers share."""
