"""Documents: from files to pictures of their pages, and of the parts of these."""
