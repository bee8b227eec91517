"""Images and classes: decoding, preprocessing, scores."""
