"""A simulation on the workers of a Ray cluster: each has a replica and the local engine, and plays slices of a cohort.

worker       what runs in a worker's process: a replica, the local engine, a slice in, replies out
query_log    the log of queries of a black box that is called on a worker; the driver makes it durable
slices       what of a cohort is played together, and what has to be repeated where its worker died
engine       the driver's side of the contract of an engine
spread       whole runs, one a task
on_ray       connects, starts, calls; Ray is imported there alone
"""
