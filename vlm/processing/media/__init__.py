"""Images and documents: from files to pixels."""
