"""Devices shared by several people and jobs: who they are, what goes to them, and what they answer.

A *pool* has a scheduler, boards that measure and run, and clients; it is a cluster of dask.distributed, and each board
is a worker of it that takes one piece of work at a time. What works on this machine alone imports nothing in here.
"""
