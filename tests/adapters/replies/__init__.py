"""From bytes to events: lines, broken JSON and the assembler."""
