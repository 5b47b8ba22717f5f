"""Where the rows of a batch find the keys and values that they attend to: a file a layout."""
