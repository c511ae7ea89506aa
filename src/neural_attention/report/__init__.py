"""Self-contained HTML pages: the attention viewer."""
