"""What a shell may propose for the word at its cursor."""
