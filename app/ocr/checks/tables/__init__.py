"""Tables of a text, as HTML or markdown writes them, and the grid that both become."""
