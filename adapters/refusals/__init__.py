"""What providers refuse: errors classified, and requests mended for one more try."""
