"""Tests of the labs: a few rounds of each lab."""
