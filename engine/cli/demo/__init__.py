"""The command `demo`: everything that there is to see, in one go."""
