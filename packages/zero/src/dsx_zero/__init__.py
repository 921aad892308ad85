"""ZeRO for dsx: optimizer states, gradients and parameters sharded over data-parallel ranks."""
