"""Share groups in the simulation: `share_search` goes through all runs of a share partition and its members."""
