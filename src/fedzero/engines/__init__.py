"""Where clients are: in this process, on a cluster, in other processes."""
