"""A site: what its server may ask of it, and what it keeps."""
