"""Tests of the HTTP/1.1 client with valid replies of each form, with broken replies, and with many connections."""
