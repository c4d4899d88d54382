"""Operations besides conversations, and their wires."""
