"""What networks of images share: patches, tiles, convolutions."""
