"""The parts of the fault lab.

What the seed decides (`plan`), a server that breaks its replies (`server`, `replies`), one round of the engine
under fire (`round`, `chaos`), and what must hold afterwards (`checks`).
"""
