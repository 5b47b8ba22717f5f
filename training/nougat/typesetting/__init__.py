"""Pages as they are set and drawn: words in fonts, lines and blocks."""
