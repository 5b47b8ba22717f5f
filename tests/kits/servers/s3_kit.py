"""S3 as the tests have it: moto on the loopback interface."""

from __future__ import annotations


def store():
    """Its file system, which asks every time."""
    import s3fs

    return s3fs.S3FileSystem(use_listings_cache=False)
