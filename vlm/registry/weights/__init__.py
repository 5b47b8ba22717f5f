"""The weights of a network -> as its layers keep them, and of a rank its part."""
