"""Operations besides conversations: their pure wires, and what drives them over HTTP."""
