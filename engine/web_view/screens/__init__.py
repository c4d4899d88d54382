"""The screens: what each asks for, and what it may do. One file for each, and its answers are plain JSON."""
