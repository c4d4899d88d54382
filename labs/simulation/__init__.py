"""A deterministic simulation of many nodes: the classes of production with simulated brokers, databases and
clocks.
"""
