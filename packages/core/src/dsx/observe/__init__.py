"""What the core itself shows of a training: progress, times, memory, communication."""
