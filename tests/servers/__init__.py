"""Tests of the field notes on servers: each note is played against Callboard."""
