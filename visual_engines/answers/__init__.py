"""What each family's tokens become: markdown, JSON, boxes."""
