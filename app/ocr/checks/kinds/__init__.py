"""The kinds of checks, a file each."""
