"""What a family brings to read its images: which class reads them, its settings, and how it is called."""
