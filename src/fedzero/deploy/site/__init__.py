"""A site: the limits of its server's orders, and the data that the site keeps."""
