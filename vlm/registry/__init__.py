"""What packages bring to vlm: specs of networks and families, and the catalogs that name them."""
