"""The virtual clusters: for each protocol its processes, random scripts of faults, and the laws of every run."""
