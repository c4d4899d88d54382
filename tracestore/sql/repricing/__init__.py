"""The history of repricings, the price tables behind it, and the costs that each of them gave."""
