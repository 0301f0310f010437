"""Live speech: one connection, and a translator for each protocol that clients speak."""
