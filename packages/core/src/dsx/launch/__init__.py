"""Starting ranks: on this machine through torchrun's agent, on several through ssh, SLURM or MPI."""
