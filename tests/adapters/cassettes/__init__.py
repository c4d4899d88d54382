"""Tests of recorded HTTP and its replay."""
